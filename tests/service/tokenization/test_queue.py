"""Long texts take turns, and are refused once too much waits."""

import asyncio
import threading
import time
from typing import Any
from unittest.mock import Mock

import pytest

from service.errors import DeadlineExceeded, Invalid, NotReady, Overloaded
from service.tokenization import queue as tokenizer_queue
from service.tokenization.queue import INLINE_CHARACTERS, Part, TokenizerQueue
from service.tokenization.tokenizer import CHARACTERS_AT_ONCE, TEXTS_AT_ONCE, Tokenizer
from tests.service.conftest import Served
from tests.service.fake_backend import PATIENCE
from tests.service.fake_engine import MAX_LENGTH, make_tokenizer
from tests.tokenizers import wordpiece

LONG = INLINE_CHARACTERS + 1


class Work:
    """Parts that write down when they run, and wait for a permit first if they are held."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.permits = threading.Semaphore(0)
        self.began = threading.Semaphore(0)

    def part(self, name: str, characters: int = LONG) -> Part:
        return Part(characters, lambda: self._run(name))

    def _run(self, name: str) -> str:
        self.began.release()
        assert self.permits.acquire(timeout=PATIENCE)
        self.done.append(name)
        return name

    async def wait_begun(self) -> None:
        assert await asyncio.to_thread(self.began.acquire, timeout=PATIENCE)

    def release(self) -> None:
        self.permits.release(1000)


async def begin(queue: TokenizerQueue, *parts: Part, deadline: float | None = None) -> asyncio.Task[list[str]]:
    """A request that waits in the queue when this returns."""
    task = asyncio.create_task(queue.run(parts, list, deadline))
    await asyncio.sleep(0)
    return task


async def test_a_request_for_which_the_system_gives_no_thread_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, work = TokenizerQueue(1), Work()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await queue.run([work.part("first")], list, None)
    assert queue.characters == 0
    work.release()
    assert await queue.run([work.part("second")], list, None) == ["second"]
    assert work.done == ["second"]


async def test_a_long_request_leaves_others_their_turns_and_counts_what_waits() -> None:
    queue, work = TokenizerQueue(1), Work()
    large = await begin(queue, *(work.part(f"large {index}") for index in range(20)))
    await work.wait_begun()
    small = await begin(queue, work.part("small"))
    assert queue.characters == 20 * LONG  # the first part is no longer waiting
    work.release()
    assert await small == ["small"]
    assert await large == [f"large {index}" for index in range(20)]
    assert work.done.index("small") <= 2, "behind the part that ran, and perhaps one more"
    assert queue.characters == 0
    queue.close()


async def test_what_would_wait_too_long_is_refused_with_when_to_come_back() -> None:
    queue, work = TokenizerQueue(1, max_delay=1.0), Work()
    queue._rate.add(1000, 1.0)
    waiting = [await begin(queue, work.part("a", 10_000))]
    await work.wait_begun()
    waiting += [await begin(queue, work.part("a", 10_000)) for _ in range(17)]
    assert not any(task.done() for task in waiting), "each may wait for 1 s and 16 times its own 10 s"
    refused = await begin(queue, work.part("b", 10_000))
    with pytest.raises(Overloaded, match=r"the expected wait is 170.00 s; try again later") as caught:
        await refused
    assert caught.value.retry_after is not None
    assert caught.value.retry_after == pytest.approx(9.0)
    assert queue.early_refusal(10_000) is not None
    assert queue.early_refusal(INLINE_CHARACTERS) is None, "it would not wait"
    late = await begin(queue, work.part("c", 5000), deadline=time.monotonic() + 2.0)
    with pytest.raises(Overloaded):
        await late
    work.release()
    await asyncio.gather(*waiting)
    queue.close()


async def test_what_nobody_waits_for_is_dropped() -> None:
    queue, work = TokenizerQueue(1), Work()
    busy = await begin(queue, work.part("busy"))
    await work.wait_begun()
    gone = await begin(queue, work.part("gone"))
    late = await begin(queue, work.part("late"), deadline=time.monotonic() + 0.01)
    gone.cancel()
    with pytest.raises(DeadlineExceeded):
        await late
    with pytest.raises(DeadlineExceeded):
        await queue.run([work.part("later")], list, time.monotonic() - 1)
    assert queue.characters == 0
    work.release()
    await busy
    queue.close()
    assert work.done == ["busy"]


async def test_a_request_that_leaves_while_a_part_of_it_runs_harms_nobody() -> None:
    queue, work = TokenizerQueue(1), Work()
    gone = await begin(queue, work.part("gone"), work.part("never"))
    await work.wait_begun()
    gone.cancel()
    await asyncio.wait([gone])
    behind = await begin(queue, work.part("behind"))
    work.release()
    assert await behind == ["behind"]
    queue.close()
    assert work.done == ["gone", "behind"]


async def test_a_part_that_fails_fails_its_request_alone() -> None:
    def fail() -> None:
        raise Invalid("no such text")

    queue, work = TokenizerQueue(1), Work()
    work.release()
    bad, good = await begin(queue, Part(LONG, fail), work.part("rest")), await begin(queue, work.part("good"))
    assert await good == ["good"]
    with pytest.raises(Invalid, match="no such text"):
        await bad
    queue.close()
    assert work.done == ["good"]


async def test_closing_fails_what_waits() -> None:
    queue, work = TokenizerQueue(1), Work()
    busy = await begin(queue, work.part("busy"))
    await work.wait_begun()
    waiting = await begin(queue, work.part("waiting"))
    queue.close()
    with pytest.raises(NotReady, match="closed"):
        await waiting
    work.release()
    assert await busy == ["busy"]


async def test_freed_memory_of_long_texts_is_returned_once_no_more_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = threading.Event()
    monkeypatch.setattr(tokenizer_queue, "trim_heap", trimmed.set)

    queue, work = TokenizerQueue(1), Work()
    work.release()
    await queue.run([work.part("short")], list, None)
    assert not trimmed.is_set()
    await queue.run([work.part("long", 131_072)], list, None)
    assert await asyncio.to_thread(trimmed.wait, PATIENCE)
    queue.close()


@pytest.mark.parametrize("ids_only", [False, True])
def test_a_long_text_leaves_other_threads_the_interpreter(*, ids_only: bool) -> None:
    tokenizer = Tokenizer(wordpiece(), 256, threads=1)

    def share() -> float:
        """The processor time of this thread, as a share of what the tokenizer's took meanwhile."""
        spent: list[float] = []

        def tokenize() -> None:
            before = time.thread_time()
            tokenizer.encode_now(["\u4e2d" * 131_072], ids_only=ids_only)
            spent.append(time.thread_time() - before)

        thread, before = threading.Thread(target=tokenize), time.thread_time()
        thread.start()
        while thread.is_alive():
            pass
        return (time.thread_time() - before) / spent[0]

    # About 1, and below 0.1 if the interpreter is held; a busy machine lets this thread wait at times.
    assert any(share() > 0.3 for _ in range(10))


def test_texts_come_to_the_library_in_calls_of_few_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(make_tokenizer(), MAX_LENGTH, threads=1)
    sizes: list[int] = []
    counts: list[int] = []
    whole = tokenizer._encode

    def encode(texts: list[str], *, ids_only: bool) -> Any:
        sizes.append(sum(map(len, texts)))
        counts.append(len(texts))
        return whole(texts, ids_only=ids_only)

    monkeypatch.setattr(tokenizer, "_encode", encode)
    texts = ["cat " * 500] * 50 + ["dog " * 20_000, "cat"]
    assert [item.full_length for item in asyncio.run(tokenizer.encode(texts))] == [502] * 50 + [20_002, 3]
    assert sum(sizes) == sum(map(len, texts))
    assert sorted(sizes)[-1] == 80_000
    assert sorted(sizes)[-2] <= CHARACTERS_AT_ONCE
    counts.clear()
    tokenizer.encode_now(["cat " * 20] * (3 * TEXTS_AT_ONCE + 1))
    assert counts == [TEXTS_AT_ONCE] * 3 + [1], "what is cut off is held for few texts at once"


TEXT = "the cat " * 1000


BODIES: dict[str, Any] = {
    "/encode": {"inputs": TEXT},
    "/tokenize": {"inputs": TEXT},
    "/explain": {"a": TEXT, "b": "a dog"},
    "/similarity": {"source": TEXT, "targets": ["a dog"]},
    "/v1/embeddings": {"input": TEXT, "model": "tests/fake"},
    "/embed": {"inputs": TEXT},
}


def test_routes_refuse_long_texts_while_the_queue_is_full(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = served.engine.tokenizer._queue
    monkeypatch.setattr(queue, "_refusal", lambda *_: Overloaded("the expected wait is 9 s", retry_after=9.0))
    for path, body in BODIES.items():
        response = served.client.post(path, json=body)
        assert (response.status_code, response.headers["retry-after"]) == (429, "9"), path
        assert served.metric("polyhead_tokenizer_queue_characters") == 0, path
