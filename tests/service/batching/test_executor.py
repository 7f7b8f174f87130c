"""Workers that die, hang and are replaced, seen through the batcher."""

import asyncio
import math
import threading
from collections.abc import Callable

import pytest

from service.batching import executor, worker_pool
from service.errors import InferenceFailed, NotReady
from tests.service.batching.test_batcher import begin, begin_busy, pooled, raising, running
from tests.service.fake_backend import PATIENCE, FakeBackend, job
from tests.service.monitor_clock import MonitorClock


def workers() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("polyhead-worker-")}


def hanging(stuck: threading.Event, unstuck: threading.Event) -> Callable[[], None]:
    def act() -> None:
        stuck.set()
        assert unstuck.wait(PATIENCE)

    return act


@pytest.mark.parametrize("death", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
async def test_a_worker_that_dies_is_replaced_and_fails_only_what_it_ran(
    death: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    backend = FakeBackend()
    backend.on_token[5] = raising(death)
    with running(backend) as batcher:
        before = workers()
        with pytest.raises(InferenceFailed):
            await batcher.submit([job(5)])
        assert pooled(await batcher.submit([job(6)])) == [[6, 1]]
        assert batcher.is_alive()
        assert len(workers()) == 1
        assert workers() != before
    assert "polyhead-worker-0 died" in caplog.text
    assert type(death).__name__ in caplog.text


async def test_what_a_dead_worker_had_not_begun_is_run_by_another() -> None:
    backend = FakeBackend()
    backend.on_token[5] = raising(SystemExit())
    with running(backend) as batcher:
        busy = await begin_busy(batcher, backend)
        doomed, second, third = [await begin(batcher, job(*ids)) for ids in ((5,), (6, 6), (7, 7, 7))]
        backend.release()
        with pytest.raises(InferenceFailed):
            await doomed
        assert pooled(await second) == [[12, 2]]
        assert pooled(await third) == [[21, 3]]
        assert sorted(map(len, backend.runs)) == [1, 1, 1, 1], "nothing ran twice"
        await asyncio.gather(*busy)


async def test_a_worker_that_hangs_is_replaced_and_ignored_when_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MonitorClock(monkeypatch)

    backend, stuck, unstuck = FakeBackend(), threading.Event(), threading.Event()
    backend.on_token[5] = hanging(stuck, unstuck)
    with running(backend, max_run_seconds=60.0) as batcher:
        busy = await begin_busy(batcher, backend)
        mate, doomed, behind = [await begin(batcher, job(*ids)) for ids in ((6,), (5,), (7, 7))]
        backend.release()
        assert await asyncio.to_thread(stuck.wait, PATIENCE)
        clock.look_later_by(61.0)
        for task in (mate, doomed):
            with pytest.raises(InferenceFailed):
                await task
        assert pooled(await behind) == [[14, 2]], "it waited behind the run that hung"
        assert pooled(await batcher.submit([job(8)])) == [[8, 1]]
        assert batcher.is_alive()
        thread = next(thread for thread in threading.enumerate() if thread.name == "polyhead-worker-0")
        unstuck.set()
        await asyncio.to_thread(thread.join, PATIENCE)
        assert not thread.is_alive(), "it ends when it comes back"
        assert len(workers()) == 1
        assert pooled(await batcher.submit([job(9)])) == [[9, 1]]
        assert (batcher.is_alive(), batcher.queued_tokens) == (True, 0)
        await asyncio.gather(*busy)
        assert await asyncio.to_thread(batcher.close, PATIENCE)
        assert backend.is_closed


async def test_a_worker_that_waits_for_work_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MonitorClock(monkeypatch)

    with running(FakeBackend()) as batcher:
        await batcher.submit([job(5)])
        before = workers()
        while any(worker.busy_since is not None for worker in batcher.executor.pool.workers):
            await asyncio.sleep(0)
        clock.look_later_by(61.0)
        await asyncio.to_thread(clock.wait_for_look)
        assert (batcher.is_alive(), workers()) == (True, before)


async def test_too_many_hanging_workers_are_the_end_and_everybody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MonitorClock(monkeypatch)

    backend = FakeBackend()
    with running(backend, workers=2, max_run_seconds=60.0, max_abandoned=1) as batcher:
        backend.hold()
        doomed = [await begin(batcher, job(5)), await begin(batcher, job(6))]
        await asyncio.to_thread(backend.wait_for_runs, 2)
        waiting = await begin(batcher, job(7))
        clock.look_later_by(61.0)
        for task in doomed:
            with pytest.raises(InferenceFailed):
                await task
        with pytest.raises(NotReady, match="no longer takes work"):
            await waiting
        with pytest.raises(NotReady):
            await batcher.submit([job(8)])
        assert not batcher.is_alive()
        assert batcher.queued_tokens == 0
        backend.release()
        with pytest.raises(NotReady):
            await batcher.submit([job(9)])
        assert not batcher.is_alive(), "permanently"
        assert not await asyncio.to_thread(batcher.close, PATIENCE)


async def test_after_the_pool_gave_up_a_lost_worker_leaves_nothing_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "MONITOR_SECONDS", 0.005)

    backend, again = FakeBackend(), threading.Event()
    one_goes, other_goes, again_goes, unstuck = (threading.Event() for _ in range(4))

    def fail_then_die() -> None:
        if len(backend.runs[-1]) > 1:
            raise OSError
        again.set()
        assert again_goes.wait(PATIENCE)
        raise SystemExit

    def hang() -> None:
        pool = batcher.executor.pool.workers
        next(one for one in pool if one.thread is threading.current_thread()).busy_since = -math.inf
        assert unstuck.wait(PATIENCE)

    ends = {token: hanging(threading.Event(), goes) for token, goes in ((1, one_goes), (2, other_goes))}
    backend.on_token = {**ends, 5: hang, 6: fail_then_die}
    with running(backend, workers=2, max_abandoned=0) as batcher:
        busy = [await begin(batcher, job(1)), await begin(batcher, job(2))]
        await asyncio.to_thread(backend.wait_for_runs, 2)
        dying, mate, stuck = [await begin(batcher, job(token)) for token in (6, 7, 5)]
        one_goes.set()
        assert await asyncio.to_thread(again.wait, PATIENCE), "the batch of 6 and 7 failed, 6 runs alone"
        other_goes.set()
        with pytest.raises(InferenceFailed):
            await stuck
        again_goes.set()
        with pytest.raises(InferenceFailed):
            await dying
        with pytest.raises(NotReady):
            await mate
        assert batcher.queued_tokens == 0
        unstuck.set()
        await asyncio.gather(*busy)


async def test_a_worker_that_hangs_while_closing_does_not_keep_the_rest_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = MonitorClock(monkeypatch)

    backend, stuck, unstuck = FakeBackend(), threading.Event(), threading.Event()
    backend.on_token[5] = hanging(stuck, unstuck)
    with running(backend, max_run_seconds=60.0) as batcher:
        busy = await begin_busy(batcher, backend)
        doomed, behind = await begin(batcher, job(5)), await begin(batcher, job(7, 7))
        closing = asyncio.create_task(asyncio.to_thread(batcher.close, PATIENCE))
        backend.release()
        assert await asyncio.to_thread(stuck.wait, PATIENCE)
        clock.look_later_by(61.0)
        with pytest.raises(InferenceFailed):
            await doomed
        assert pooled(await behind) == [[14, 2]]
        assert await closing, "all that was accepted was answered"
        assert not backend.is_closed, "a run is still going on in it"
        unstuck.set()
        await asyncio.gather(*busy)


async def test_an_end_waits_a_moment_for_a_run_that_was_taken_for_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MonitorClock(monkeypatch)
    monkeypatch.setattr(executor, "_CANCEL_SECONDS", PATIENCE)
    backend, stuck, unstuck = FakeBackend(), threading.Event(), threading.Event()
    backend.on_token[5] = hanging(stuck, unstuck)
    with running(backend, max_run_seconds=60.0) as batcher:
        backend.release()
        doomed = await begin(batcher, job(5))
        assert await asyncio.to_thread(stuck.wait, PATIENCE)
        clock.look_later_by(61.0)
        with pytest.raises(InferenceFailed):
            await doomed
        threading.Timer(0.1, unstuck.set).start()
        assert await asyncio.to_thread(batcher.close, PATIENCE)
        assert backend.is_closed


async def test_a_dying_worker_does_not_end_the_drain() -> None:
    backend = FakeBackend()
    backend.on_token[5] = raising(SystemExit())
    with running(backend) as batcher:
        busy = await begin_busy(batcher, backend)
        doomed = await begin(batcher, job(5))
        others = [await begin(batcher, job(token, token)) for token in range(10, 300)]
        closing = asyncio.create_task(asyncio.to_thread(batcher.close, PATIENCE))
        while batcher.is_alive():
            await asyncio.sleep(0)
        backend.release()
        with pytest.raises(InferenceFailed):
            await doomed
        assert [pooled(results)[0][1] for results in await asyncio.gather(*others)] == [2] * 290
        assert await closing
        await asyncio.gather(*busy)
