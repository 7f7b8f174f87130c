"""Workers: runs whose requests have all ended are cancelled, and no others; models share the cores."""

import asyncio
import threading
import time
from unittest.mock import Mock

import pytest

from service.batching.executor import KEPT_SECONDS, CoreShare, CoreShares
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


def begin_runs(member: CoreShare, times: int) -> None:
    for _ in range(times):
        member.__enter__()


@pytest.mark.parametrize(
    ("cores", "running", "most"),
    [
        (2, [0], [2]),  # alone, or the others idle
        (2, [2, 0], [2, 1]),  # the other may begin one run at once
        (2, [1, 1], [1, 1]),
        (8, [5, 1], [7, 4]),  # what one does not use is the other's
        (8, [3, 2, 1], [5, 5, 4]),
        (2, [1, 0, 0], [2, 1, 1]),
        (1, [1, 0], [1, 1]),
    ],
)
def test_each_has_its_fair_part_and_what_others_leave(cores: int, running: list[int], most: list[int]) -> None:
    shares = CoreShares(cores, Mock(return_value=0.0))
    members = [shares.join() for _ in running]
    for member, times in zip(members, running, strict=True):
        begin_runs(member, times)
    assert [member.most(0.0) for member in members] == most


def test_a_core_is_left_for_a_moment_to_the_model_that_used_it() -> None:
    clock = Mock(return_value=0.0)
    shares = CoreShares(4, clock)
    flooded, other = shares.join(), shares.join()
    with other:
        pass
    assert flooded.most(0.0) == 3
    assert flooded.most(KEPT_SECONDS) == 4
    shares.leave(other)
    assert flooded.most(0.0) == 4


def test_a_worker_waits_until_the_cores_are_left_to_it() -> None:
    clock = Mock(return_value=0.0)
    shares = CoreShares(2, clock)
    flooded, other = shares.join(), shares.join()
    begin_runs(other, 1)
    begin_runs(flooded, 1)
    began = threading.Event()

    def work() -> None:
        with flooded:
            began.set()

    waiting = threading.Thread(target=work, daemon=True)
    waiting.start()
    other.__exit__()
    assert not began.is_set()
    clock.return_value = KEPT_SECONDS
    waiting.join()
    assert began.is_set()


async def test_the_expected_wait_counts_the_cores_that_another_model_uses() -> None:
    shares, backend = CoreShares(2), FakeBackend()
    shares.join().__enter__()  # and never ends: two workers have one core between them
    backend.on_token[1] = lambda: time.sleep(0.01)
    with running(backend, workers=2, max_batch_tokens=1) as batcher:
        batcher.executor.cores = shares.join()
        began = time.monotonic()
        await asyncio.gather(*(batcher.submit([job(1)]) for _ in range(40)))
        expected = batcher.executor.rate.seconds_for(40, workers=2)
        assert expected > 0.7 * (time.monotonic() - began)
