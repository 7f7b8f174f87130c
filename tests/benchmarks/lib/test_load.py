import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
import pytest

from benchmarks.lib.client import DROPPED, Address, Response, post
from benchmarks.lib.load import OpenRun, Tally, closed_loop, open_loop, poisson_schedule

InLoop = Callable[[Coroutine[Any, Any, Any]], Any]
Undisturbed = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]
Serve = Callable[..., AbstractAsyncContextManager[Address]]
REQUEST = post("/", {}, texts=2, tokens=60)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
BUSY = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}"


def test_poisson_arrivals_have_the_rate_and_the_spread_of_their_law() -> None:
    arrivals = np.array(poisson_schedule(rate=200.0, seconds=100.0, seed=3))
    gaps = np.diff(arrivals, prepend=0.0)
    assert len(arrivals) == pytest.approx(20_000, abs=5 * 20_000**0.5)
    assert gaps.min() >= 0
    assert arrivals[-1] < 100.0
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)  # exponential: standard deviation equals mean
    assert np.mean(gaps > 1 / 200) == pytest.approx(np.exp(-1), abs=0.02)


def test_the_schedule_is_repeatable_and_seeds_differ() -> None:
    assert poisson_schedule(50.0, 2.0, seed=1) == poisson_schedule(50.0, 2.0, seed=1)
    assert poisson_schedule(50.0, 2.0, seed=1) != poisson_schedule(50.0, 2.0, seed=2)


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


def test_a_request_may_expect_to_be_refused() -> None:
    tally = Tally(seconds=1.0)
    tally.add(post("/", {}, expects=422), Response(422, None, b""), 0.1)
    tally.add(post("/", {}, expects=422), Response(200, None, b""), 0.1)
    assert tally.failed == 1


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


@pytest.mark.alone
def test_a_closed_loop_is_exact_where_a_window_holds_a_few_slow_requests(
    serve: Serve, undisturbed: Undisturbed
) -> None:
    async def very_slowly(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.4)
        writer.write(OK)

    async def run() -> Tally:
        async with serve(very_slowly) as address:
            return await closed_loop(address, [REQUEST], connections=4, seconds=1.0, warmup=0.1)

    # Answers come 4 at a time, at 0.4 s, 0.8 s, ...: whole requests would count as 8 or 12. On a busy machine they come
    # later, and the rate is that of the answers that came.
    tally = undisturbed(run)
    took = sum(tally.latencies) / len(tally.latencies)
    assert took >= 0.398  # uvloop sleeps in whole milliseconds
    assert tally.rates()["requests_per_s"] == pytest.approx(4 / took, rel=0.12)


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


@pytest.mark.alone
def test_an_open_loop_keeps_its_rate_whatever_the_latency(serve: Serve, undisturbed: Undisturbed) -> None:
    async def slowly(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(OK)

    schedule = poisson_schedule(rate=100.0, seconds=1.0, seed=1)

    async def run() -> OpenRun:
        async with serve(slowly) as address:
            return await open_loop(address, [REQUEST], schedule, connections=200, warmup=0.5)

    outcome = undisturbed(run)
    assert outcome.due.statuses == {200: sum(due >= 0.5 for due in schedule)}
    assert outcome.due.rates()["p50_ms"] == pytest.approx(200, abs=60)
    # what was due in the last 0.2 s is answered after the window, what was due in the 0.2 s before it inside
    expected = sum(0.5 <= due + 0.2 < schedule[-1] for due in schedule)
    assert outcome.done.statuses[200] == pytest.approx(expected, abs=8)


def test_an_open_loop_tells_refused_from_accepted(serve: Serve, in_loop: InLoop) -> None:
    turn = itertools.count()

    async def refuse_every_third(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(BUSY if next(turn) % 3 == 0 else OK)

    async def run() -> Tally:
        async with serve(refuse_every_third) as address:
            schedule = [index / 500 for index in range(1, 301)]
            return (await open_loop(address, [REQUEST], schedule, connections=8, warmup=0.0)).due

    tally = in_loop(run())
    assert tally.statuses == {200: 200, 429: 100}
    assert tally.with_retry_after == tally.refused == 100
