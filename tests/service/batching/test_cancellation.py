"""Runs whose requests have all ended are cancelled, and no others."""

import asyncio
import threading
import time

import numpy as np
import pytest

from service.batching.batcher import Batcher
from service.errors import DeadlineExceeded, NotReady, Overloaded
from service.inference.backend import Batch, BatchOutput, Cancellation
from tests.service.batching.test_batcher import begin, pooled, worker_threads
from tests.service.fake_backend import PATIENCE, job


class EndableBackend:
    """Runs texts of one token at once, longer ones until they are cancelled."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.cancelled = threading.Event()
        self.batches: list[Batch] = []
        self.is_closed = False

    def run(self, batch: Batch) -> BatchOutput:
        self.batches.append(batch)
        self.started.release()
        if batch.lengths.max() > 1:
            batch.cancellation.on_cancel(self.cancelled.set)
            assert self.cancelled.wait(PATIENCE)
            raise RuntimeError("ended early")
        return BatchOutput(batch.input_ids.astype(np.float32), None, {})

    def close(self) -> None:
        self.is_closed = True


def batcher_over(backend: EndableBackend) -> Batcher:
    made = Batcher(backend, workers=1, max_batch_tokens=64, max_queue_tokens=1000)
    made.start()
    return made


@pytest.mark.parametrize("has_deadline", [False, True])
async def test_a_run_ends_with_its_only_request(has_deadline: bool, caplog: pytest.LogCaptureFixture) -> None:
    backend = EndableBackend()
    batcher = batcher_over(backend)
    task = await begin(batcher, job(1, 2, 3), deadline=time.monotonic() + 1 if has_deadline else None)
    assert await asyncio.to_thread(backend.started.acquire, timeout=PATIENCE)
    if not has_deadline:
        task.cancel()
    with pytest.raises(DeadlineExceeded if has_deadline else asyncio.CancelledError):
        await task
    assert backend.cancelled.wait(PATIENCE)
    assert pooled(await batcher.submit([job(7)])) == [[7]], "the worker goes on"
    assert await asyncio.to_thread(batcher.close, PATIENCE)
    assert "failed" not in caplog.text


async def test_a_run_goes_on_while_one_request_waits_for_it() -> None:
    backend = EndableBackend()
    batcher = batcher_over(backend)
    first = await begin(batcher, job(1, 2), job(3, 4))
    second = await begin(batcher, job(5, 6))
    assert await asyncio.to_thread(backend.started.acquire, timeout=PATIENCE)
    mates = len(backend.batches[0].lengths)
    for task in (second, first) if mates > 2 else (first,):
        assert not backend.cancelled.is_set()
        task.cancel()
        await asyncio.wait([task])
    assert backend.cancelled.wait(PATIENCE)
    second.cancel()
    assert await asyncio.to_thread(batcher.close, PATIENCE)


async def test_closing_ends_the_runs_that_it_does_not_wait_for() -> None:
    backend, before = EndableBackend(), worker_threads()
    batcher = batcher_over(backend)
    task = await begin(batcher, job(1, 2, 3))
    assert await asyncio.to_thread(backend.started.acquire, timeout=PATIENCE)
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
    batcher = batcher_over(EndableBackend())
    batcher.executor.rate.add(1, 10.0)  # a token in ten seconds
    waiting = [await begin(batcher, job(*[1] * 50)) for _ in range(4)]
    with pytest.raises(Overloaded, match="the expected wait is"):
        await batcher.submit([job(2, 2)], deadline=time.monotonic() + 10)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert await asyncio.to_thread(batcher.close, PATIENCE)
