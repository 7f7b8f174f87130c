"""Many requests to explain at once: `POST /encode` goes on, the queue is bounded, and refusals say what to do.

The decomposer stands still meanwhile, so nothing here depends on speed.
"""

import asyncio
import json
from typing import Any, NamedTuple

import pytest

from tests.service.conftest import Serve, Served
from tests.service.fake_engine import FakeDecomposer, load_fake_runner
from tests.service.loop_hold import collect_answer

EXPLAIN = {"a": "the cat sat", "b": "a dog", "through": "network"}
DECOMPOSE = {"inputs": ["the cat sat", "a dog"], "attention": {"form": "decomposition"}}
TOO_LONG = {**EXPLAIN, "b": "the cat sat on a mat"}
AT_ONCE = 40
PATIENCE = 16  # as in `service.batching.decompositions`: a request waits for this many of its own size
AT_WORK = 2 + 1  # runs: the first request's two texts, and one on the one thread


class Answered(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: Any


@pytest.fixture
def decomposer() -> FakeDecomposer:
    return FakeDecomposer()


@pytest.fixture
def impatient(serve: Serve, decomposer: FakeDecomposer) -> Served:
    """A service whose requests may wait for nothing but 16 times their own run."""
    served: Served = serve("--max-explained-tokens", "6", ready=False)
    made = load_fake_runner(served.services.settings, backend=served.backend, max_queue_delay=0, decomposer=decomposer)
    served.engine.close(5)
    served.engine = made
    served.start()
    return served


async def post(served: Served, path: str, body: dict[str, Any]) -> Answered:
    sent: list[dict[str, Any]] = []
    await collect_answer(served.client.app, path, json.dumps(body).encode(), sent)
    head, *pieces = sent
    content = b"".join(piece["body"] for piece in pieces)
    return Answered(head["status"], dict(head["headers"]), json.loads(content))


async def explain_all(served: Served, decomposer: FakeDecomposer) -> tuple[list[asyncio.Task[Answered]], Answered]:
    """So many requests while the decomposer stands still, and one to encode that is answered meanwhile."""
    await post(served, "/explain", EXPLAIN)  # from now on its speed is known
    decomposer.gate.clear()
    calls: list[tuple[str, dict[str, Any]]] = [("/explain", EXPLAIN), ("/encode", DECOMPOSE)]
    waiting = [asyncio.ensure_future(post(served, *calls[index % 2])) for index in range(AT_ONCE)]
    async with asyncio.timeout(60):  # where no one is refused, or nothing is begun
        while sum(task.done() for task in waiting) < AT_ONCE - PATIENCE - 1 or len(decomposer.sources) < AT_WORK:
            await asyncio.sleep(0.001)
    return waiting, await post(served, "/encode", {"inputs": "the cat"})


def test_explaining_neither_starves_encoding_nor_waits_unbound(impatient: Served, decomposer: FakeDecomposer) -> None:
    async def run() -> tuple[list[Answered], Answered, Answered, int]:
        waiting, encoded = await explain_all(impatient, decomposer)
        at_work = len(decomposer.sources)
        too_long = await post(impatient, "/explain", TOO_LONG)
        decomposer.gate.set()
        return await asyncio.gather(*waiting), encoded, too_long, at_work

    answered, encoded, too_long, at_work = asyncio.run(run())
    assert encoded.status == 200
    assert (too_long.status, too_long.body["error"]["param"]) == (413, "b")
    assert at_work == AT_WORK
    refused = [answer for answer in answered if answer.status != 200]
    assert AT_ONCE - PATIENCE - 1 <= len(refused) <= AT_ONCE - PATIENCE
    for answer in refused:
        assert answer.status == 429
        assert int(answer.headers[b"retry-after"]) >= 1
        assert answer.body["error"]["code"] == "overloaded"


def test_what_waits_leaves_with_its_client(impatient: Served, decomposer: FakeDecomposer) -> None:
    async def run() -> Answered:
        waiting, _ = await explain_all(impatient, decomposer)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        decomposer.gate.set()
        return await post(impatient, "/explain", EXPLAIN)

    assert asyncio.run(run()).status == 200  # no one waits in front of it any more
