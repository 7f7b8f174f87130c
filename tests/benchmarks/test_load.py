import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from benchmarks.lib.load import DROPPED, Address, Connection, Response, Tally, closed_loop, open_loop, post

InLoop = Callable[[Coroutine[Any, Any, Any]], Any]


Serve = Callable[..., AbstractAsyncContextManager[Address]]


def test_keeps_one_connection_and_reads_answers_in_any_pieces(serve: Serve, in_loop: InLoop) -> None:
    peers = set()

    async def in_pieces(body: bytes, writer: asyncio.StreamWriter) -> None:
        peers.add(writer.get_extra_info("peername"))
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        for start in range(0, len(answer), 7):
            writer.write(answer[start : start + 7])
            await writer.drain()
            await asyncio.sleep(0.001)

    async def run() -> None:
        async with serve(in_pieces) as address:
            connection = Connection(address, keep_body=True)
            for text in ("first", "a second one, longer", ""):
                request = post("/", {"text": text}, texts=1, tokens=1)
                response = await connection.send(request.data)
                assert response.status == 200
                assert json.loads(response.body) == {"text": text}
            connection.close()
            assert len(peers) == 1
            assert (await connection.send(request.data)).status == DROPPED

    in_loop(run())


def test_connects_again_after_connection_close_and_after_a_dropped_request(serve: Serve, in_loop: InLoop) -> None:
    answers = iter(
        [
            b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            None,
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ]
    )

    async def handle(_: bytes, writer: asyncio.StreamWriter) -> None:
        answer = next(answers)
        if answer is None:
            writer.close()
        else:
            writer.write(answer)

    async def run() -> None:
        async with serve(handle) as address:
            connection = Connection(address)
            statuses = [(await connection.send(b"GET / HTTP/1.1\r\n\r\n")).status for _ in range(3)]
            assert statuses == [413, DROPPED, 200]
            connection.close()

    in_loop(run())


Undisturbed = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


REQUEST = post("/", {}, texts=2, tokens=60)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_a_tally_counts_work_and_latency_of_successes_only() -> None:
    tally = Tally(seconds=2.0)
    tally.add(REQUEST, Response(200, None, b""), 0.5)
    tally.add(REQUEST, Response(200, None, b""), 1.5)
    tally.add(REQUEST, Response(429, "1", b""), 0.001)
    tally.add(REQUEST, Response(503, None, b""), 0.001)
    tally.add(REQUEST, Response(DROPPED, None, b""), 9.0)
    assert tally.rates() == {
        "requests_per_s": 1.0,
        "texts_per_s": 2.0,
        "tokens_per_s": 60.0,
        "p50_ms": 500.0,
        "p95_ms": 1500.0,
        "p99_ms": 1500.0,
    }
    assert (tally.refused, tally.with_retry_after, tally.failed) == (2, 1, 2)


@pytest.mark.alone
def test_a_closed_loop_measures_what_the_server_gives(serve: Serve, undisturbed: Undisturbed) -> None:
    async def slowly(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(OK)

    async def run() -> Tally:
        async with serve(slowly) as address:
            return await closed_loop(address, [REQUEST], connections=4, seconds=1.0, warmup=0.2)

    tally = undisturbed(run)
    assert tally.rates()["requests_per_s"] == pytest.approx(4 / 0.05, rel=0.2)
    assert tally.rates()["tokens_per_s"] == pytest.approx(60 * 4 / 0.05, rel=0.2)
    assert min(tally.latencies) >= 0.048  # uvloop sleeps in whole milliseconds
    assert tally.failed == 0
    assert 0 < tally.client_cpu < 1.0


def test_a_closed_loop_reports_answers_that_never_came(
    serve: Serve, in_loop: InLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.lib.load.GRACE", 0.1)

    async def never(_: bytes, writer: asyncio.StreamWriter) -> None:
        pass

    async def run() -> Tally:
        async with serve(never) as address:
            return await closed_loop(address, [REQUEST], connections=3, seconds=0.1, warmup=0.0)

    assert in_loop(run()).statuses == {DROPPED: 3}


@pytest.mark.alone
def test_an_open_loop_charges_a_stall_to_everyone_who_was_due_meanwhile(serve: Serve, undisturbed: Undisturbed) -> None:
    started = time.perf_counter()

    async def stalls_at_first(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(max(0.0, started + 0.5 - time.perf_counter()))
        writer.write(OK)

    schedule = [index / 100 for index in range(1, 101)]

    async def run() -> list[float]:
        nonlocal started
        async with serve(stalls_at_first) as address:
            started = time.perf_counter()
            outcome = await open_loop(address, [REQUEST], schedule, connections=2, warmup=0.0)
            assert outcome.connections == 2
            return sorted(outcome.due.latencies)

    latencies = undisturbed(run)
    assert len(latencies) == 100
    # Half of the requests were due before the server woke up, 0 to 0.5 s earlier: the median of all is near 0, the
    # 75th percentile near 0.25 s. A client that waits for its two connections and times from sending sees 2 slow ones.
    assert latencies[74] == pytest.approx(0.25, abs=0.1)
    assert latencies[-1] == pytest.approx(0.49, abs=0.1)
