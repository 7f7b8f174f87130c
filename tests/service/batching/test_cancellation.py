"""Runs whose requests have all ended are cancelled, and no others."""

import asyncio
import time

import pytest

from service.errors import DeadlineExceeded, NotReady, Overloaded
from service.inference.backend import Cancellation
from tests.service.batching.test_batcher import begin, occupied, pooled, running, worker_threads
from tests.service.fake_backend import ENDLESS, PATIENCE, FakeBackend, job


@pytest.mark.parametrize("has_deadline", [False, True])
async def test_a_run_ends_with_its_only_request(has_deadline: bool, caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend()
    with running(backend) as batcher:
        task = await begin(batcher, job(ENDLESS), deadline=time.monotonic() + 1 if has_deadline else None)
        await asyncio.to_thread(backend.wait_for_runs, 1)
        if not has_deadline:
            task.cancel()
        with pytest.raises(DeadlineExceeded if has_deadline else asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(backend.cancelled.wait, PATIENCE)
        assert pooled(await batcher.submit([job(7)])) == [[7, 1]], "the worker goes on"
    assert "failed" not in caplog.text


async def test_a_run_goes_on_while_one_request_waits_for_it() -> None:
    async with occupied() as (batcher, backend):
        first, second = await begin(batcher, job(1, 2), job(3, ENDLESS)), await begin(batcher, job(5, 6))
        backend.release()
        await asyncio.to_thread(backend.wait_for_runs, 2)
        assert backend.runs[1] == [(1, 2), (5, 6), (3, ENDLESS)]
        for task in (second, first):
            assert not backend.cancelled.is_set()
            task.cancel()
            await asyncio.wait([task])
        assert await asyncio.to_thread(backend.cancelled.wait, PATIENCE)


async def test_closing_ends_the_runs_that_it_does_not_wait_for() -> None:
    backend, before = FakeBackend(), worker_threads()
    with running(backend) as batcher:
        task = await begin(batcher, job(ENDLESS))
        await asyncio.to_thread(backend.wait_for_runs, 1)
        assert not await asyncio.to_thread(batcher.close, 0.01)
        with pytest.raises(NotReady):
            await task
        assert (backend.cancelled.is_set(), backend.is_closed) == (True, True)
        assert worker_threads() <= before


def test_cancelling_late_or_twice_calls_once() -> None:
    calls: list[int] = []
    cancellation = Cancellation()
    cancellation.cancel()
    cancellation.on_cancel(lambda: calls.append(1))
    cancellation.cancel()
    assert calls == [1]


async def test_nothing_is_taken_whose_turn_comes_after_its_deadline() -> None:
    async with occupied() as (batcher, _):
        batcher.executor.rate.add(1, 10.0)  # a token in ten seconds
        waiting = [await begin(batcher, job(*[1] * 50)) for _ in range(4)]
        with pytest.raises(Overloaded, match="the expected wait is"):
            await batcher.submit([job(2, 2)], deadline=time.monotonic() + 10)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
