import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import uvloop

from service.batching.batcher import Batcher
from service.batching.jobs import Job, JobResult
from service.errors import DeadlineExceeded, InferenceFailed, NotReady, Overloaded, ServiceError, TooLarge
from service.observability.stages import BatchRecord
from tests.service.batching.test_queue import counted_lines
from tests.service.fake_backend import PATIENCE, FakeBackend, job

Submission = asyncio.Task[list[JobResult]]


@contextmanager
def running(
    on_token: Mapping[int, BaseException] | None = None, **settings: Any
) -> Iterator[tuple[Batcher, FakeBackend]]:
    """A batcher, and its backend, which raises what `on_token` says of a token."""
    backend = FakeBackend()
    backend.on_token = {token: Mock(side_effect=error) for token, error in (on_token or {}).items()}
    values: dict[str, Any] = {"workers": 1, "max_batch_tokens": 64, "max_queue_tokens": 1000}
    batcher = Batcher(backend, **{**values, **settings})
    batcher.start()
    try:
        yield batcher, backend
    finally:
        backend.release()
        batcher.close(PATIENCE)


def worker_threads() -> set[threading.Thread]:
    """Workers of this process, which may belong to services of other tests."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("polyhead-")}


def pooled(results: list[JobResult]) -> list[list[float]]:
    return [result.output.tolist() for result in results]


async def begin(batcher: Batcher, *jobs: Job, deadline: float | None = None) -> Submission:
    """A request that has been queued (or refused) when this returns."""
    task = asyncio.create_task(batcher.submit(jobs, deadline=deadline))
    await asyncio.sleep(0)
    return task


@asynccontextmanager
async def occupied(workers: int = 1, **settings: Any) -> AsyncIterator[tuple[Batcher, FakeBackend]]:
    """As `running`, with every worker in a run until it is permitted to go, which it is at the latest in the end."""
    with running(workers=workers, **settings) as (batcher, backend):
        backend.hold()
        busy = []
        for index in range(workers):
            busy.append(await begin(batcher, job(1)))
            await asyncio.to_thread(backend.wait_for_runs, index + 1)
        yield batcher, backend
        backend.release()
        await asyncio.gather(*busy)


async def test_answers_in_the_order_of_the_texts_without_padding() -> None:
    with running(max_padding=0.5) as (batcher, _):
        results = await batcher.submit(
            [job(1, 2), job(3, wants_tokens=True), job(4, 5, 6, layers=(0, 2)), job(7, 8, wants_tokens=True)]
        )
        assert pooled(results) == [[3, 2], [3, 1], [15, 3], [15, 2]]
        assert results[0].last_hidden_state is None
        np.testing.assert_array_equal(results[1].last_hidden_state, [[3]])
        np.testing.assert_array_equal(results[3].last_hidden_state, [[7], [8]])
        assert {layer: maps.shape for layer, maps in results[2].attentions.items()} == {0: (2, 3, 3), 2: (2, 3, 3)}


async def test_texts_and_outcomes_are_kept_nowhere_once_they_are_handed_over() -> None:
    """The queue drops what it knows of a request when the next ones have their turn: hours later, where none comes."""

    async def failure(batcher: Batcher) -> weakref.ref[Exception]:
        try:
            await batcher.submit([job(7)])
        except InferenceFailed as error:
            return weakref.ref(error)  # and with it all that its traceback holds, the caller's texts among it
        raise AssertionError("it did not fail")

    with running(on_token={7: OSError()}) as (batcher, _):
        held: list[weakref.ref[Any]] = [await failure(batcher)]
        jobs = [job(1, 2, layers=(0,)), job(3, 4, layers=(0,))]
        results = await batcher.submit(jobs)
        held += [weakref.ref(result.attentions[0]) for result in results]
        held += [weakref.ref(given.input_ids) for given in jobs]
        del jobs, results
        for _ in range(1000):  # the worker's own go when it waits again
            await asyncio.sleep(0.001)
            if not any(reference() is not None for reference in held):
                return
        pytest.fail(f"still held: {held}")


def test_serves_several_event_loops_at_once() -> None:
    with running(workers=2) as (batcher, _):
        answers: dict[int, list[list[float]]] = {}

        def serve(token: int) -> None:
            answers[token] = pooled(asyncio.run(batcher.submit([job(token)] * 20)))

        threads = [threading.Thread(target=serve, args=(token,)) for token in (3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert answers == {3: [[3, 1]] * 20, 4: [[4, 1]] * 20}


async def test_results_leave_when_their_batch_is_done() -> None:
    async with occupied() as (batcher, backend):
        first, second = await begin(batcher, job(5)), await begin(batcher, job(6, 6))
        backend.permit(2)
        assert pooled(await first) == [[5, 1]]
        await asyncio.to_thread(backend.wait_for_runs, 3)
        assert not second.done()
        backend.permit()
        assert pooled(await second) == [[12, 2]]


@pytest.mark.parametrize(
    ("workers", "requests", "run"),
    [
        (2, [[job(9, 9)]] * 8, 4),
        (16, [[job(9, 9, 9, 9)] * 32], 16),  # 64 tokens, where a sixteenth of the waiting tokens would be 8
    ],
)
async def test_a_worker_leaves_the_others_their_share_but_cuts_no_runs_of_one(
    workers: int, requests: list[list[Job]], run: int
) -> None:
    async with occupied(workers=workers) as (batcher, backend):
        waiting = [await begin(batcher, *jobs) for jobs in requests]
        texts = batcher.queued_texts
        backend.permit()
        await asyncio.to_thread(backend.wait_for_runs, workers + 1)
        assert (len(backend.runs[workers]), batcher.queued_texts) == (run, texts - run)
        backend.release()
        await asyncio.gather(*waiting)


async def test_reports_every_run() -> None:
    """A run that brings nothing counts as busy, and not as a batch."""
    records: list[BatchRecord] = []
    async with occupied(on_token={7: OSError()}, max_padding=0.5, on_batch=records.append) as (batcher, backend):
        waiting = await begin(batcher, job(5, 5, 5), job(6, 6))
        backend.release()
        await waiting
        with pytest.raises(InferenceFailed):
            await batcher.submit([job(7)])
        await batcher.submit([job(1)])
    assert [(r.texts, r.tokens, r.padded_tokens) for r in records] == [(1, 1, 1), (2, 5, 6), (0, 0, 0), (1, 1, 1)]
    assert all(record.inference_seconds > 0 for record in records)


async def test_tells_time_in_the_queue_from_time_in_the_run() -> None:
    async with occupied() as (batcher, backend):
        began = time.monotonic()
        waiting = await begin(batcher, job(5))
        await asyncio.sleep(0.02)
        assert 0.02 <= batcher.oldest_age <= time.monotonic() - began
        backend.permit()
        await asyncio.to_thread(backend.wait_for_runs, 2)
        await asyncio.sleep(0.03)
        backend.permit()
        (result,) = await waiting
        assert result.queue_seconds >= 0.02
        assert result.inference_seconds >= 0.03
        assert result.queue_seconds + result.inference_seconds <= time.monotonic() - began


async def test_a_full_queue_refuses_before_it_queues_and_says_when_to_come_back() -> None:
    async with occupied(max_queue_tokens=6) as (batcher, backend):
        batcher.rate.add(1, 30.0)  # two tokens a minute
        waiting = await begin(batcher, job(1, 2, 3), job(4))
        refused = await begin(batcher, job(5), job(6, 7))
        assert (batcher.queued_texts, batcher.queued_tokens) == (2, 4)
        with pytest.raises(Overloaded, match="too many tokens are waiting; try again later") as caught:
            await refused
        assert caught.value.retry_after == 30.0, "one token is too many"
        fits = await begin(batcher, job(8, 9))
        backend.release()
        assert pooled(await waiting) == [[6, 3], [4, 1]]
        assert pooled(await fits) == [[17, 2]]


async def test_refuses_what_would_wait_long_counting_its_fair_share_of_each_other_request() -> None:
    async with occupied(max_queue_delay=0.1, max_batch_tokens=1000, max_queue_tokens=10_000) as (batcher, backend):
        batcher.rate.add(1000, 1.0)  # a millisecond a token
        large = await begin(batcher, *[job(*range(10))] * 50)  # waits behind nothing: taken whatever its size
        small = [await begin(batcher, job(*range(10))) for _ in range(40)]
        outcomes = [task.exception() for task in small if task.done()]
        # 10 ms of its own, so 0.1 + 16 * 0.01 s of patience: the large request's share and 25 small ones fit before
        assert len(outcomes) == 40 - 26
        assert all(isinstance(outcome, Overloaded) for outcome in outcomes)
        assert str(outcomes[0]) == "the expected wait is 0.27 s; try again later"
        assert batcher.early_refusal(32) is None  # longer, so more patient
        # 0.27 s behind these, 0.032 s behind each like it, and 0.1 + 16 * 0.032 s of patience
        assert batcher.early_refusal(32, others=10) is None
        assert batcher.early_refusal(32, others=11) is not None
        more = [await begin(batcher, *[job(*range(10))] * 5) for _ in range(11)]
        refusal = batcher.early_refusal(32)
        assert refusal is not None
        assert str(refusal).startswith("the expected wait is")
        for_many = batcher.early_refusal(32, refused=1000 * 32)
        assert for_many is not None
        assert for_many.retry_after == pytest.approx(1000 / 2 * 0.032, abs=0.1)
        backend.release()
        await asyncio.gather(large, *more, *(task for task in small if not task.done()))


async def test_a_refusal_is_freed_at_once() -> None:
    async with occupied(max_queue_delay=0.1) as (batcher, backend):
        batcher.rate.add(1, 1.0)  # a second a token
        waiting = await begin(batcher, *[job(1, 2)] * 50)
        gc.disable()  # which would free it, too, by looking through all that there is
        try:
            await batcher.submit([job(3)], deadline=time.monotonic() + 0.5)
        except Overloaded as error:
            held = weakref.ref(error)
        finally:
            gc.enable()
        assert held() is None
        backend.release()
        await waiting


async def test_a_request_larger_than_the_queue_is_told_so() -> None:
    with running(max_queue_tokens=2) as (batcher, _):
        with pytest.raises(TooLarge) as refused:
            await batcher.submit([job(0), job(1, 2)])
        assert refused.value.message == "the request has 3 tokens, the queue takes 2 at most: send fewer texts"
        assert pooled(await batcher.submit([job(1, 2)])) == [[3, 2]]


async def test_admission_does_not_look_at_each_request_that_waits() -> None:
    async with occupied(max_queue_tokens=100_000) as (batcher, backend):
        waiting = [await begin(batcher, job(2, 3)) for _ in range(1000)]
        with counted_lines() as lines:
            batcher.early_refusal(32)
            assert lines() < 100  # 20 to 40, by how long the run that is under way takes already
        backend.release()
        await asyncio.gather(*waiting)


async def test_who_leaves_and_who_is_late_frees_the_queue_at_once_and_runs_nothing() -> None:
    async with occupied() as (batcher, backend):
        gone = await begin(batcher, job(5), job(6))
        stays = await begin(batcher, job(7), deadline=time.monotonic() + PATIENCE)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert (batcher.queued_texts, batcher.queued_tokens) == (1, 1)
        late = await begin(batcher, job(8), deadline=time.monotonic() + 0.02)
        with pytest.raises(DeadlineExceeded, match="the deadline passed before the answer was there"):
            await late
        with pytest.raises(DeadlineExceeded):  # at once
            await batcher.submit([job(9)], deadline=time.monotonic() - 1)
        assert (batcher.queued_texts, batcher.queued_tokens) == (1, 1)
        backend.release()
        await stays
        assert backend.runs == [[(1,)], [(7,)]]


async def test_a_worker_skips_expired_work_even_where_the_event_loop_stands_still() -> None:
    async with occupied() as (batcher, backend):
        late = await begin(batcher, job(5), deadline=time.monotonic() + 0.02)
        time.sleep(0.03)  # the loop stands still
        backend.permit()
        patience = time.monotonic() + PATIENCE
        while batcher.queued_texts and time.monotonic() < patience:
            pass
        with pytest.raises(DeadlineExceeded):
            await late
        backend.release()
        await batcher.submit([job(6)])
        assert backend.runs == [[(1,)], [(6,)]]


async def test_a_bad_text_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with occupied(on_token={987654: OSError("no such row")}) as (batcher, backend):
        good, bad, fine = [await begin(batcher, job(token)) for token in (5, 987654, 6)]
        backend.release()
        assert pooled(await good) == [[5, 1]]
        assert pooled(await fine) == [[6, 1]]
        with pytest.raises(InferenceFailed, match="^inference failed; the log has the details$") as caught:
            await bad
        assert isinstance(caught.value.__cause__, OSError)
        assert backend.runs == [[(1,)], [(5,), (987654,), (6,)], [(5,)], [(987654,)], [(6,)]]
        assert batcher.is_alive()
    assert "a batch of 1 texts, 1 tokens the longest, failed" in caplog.text
    assert "OSError: no such row" in caplog.text
    assert "Traceback" in caplog.text
    assert "987654" not in caplog.text


async def test_a_failed_text_takes_the_rest_of_its_request_out_of_the_queue() -> None:
    with running(on_token={5: OSError()}, max_batch_tokens=1) as (batcher, backend):
        with pytest.raises(InferenceFailed):
            await batcher.submit([job(4), job(5), *[job(6)] * 100])
        assert batcher.queued_tokens == 0
        await batcher.submit([job(7)])
        assert backend.runs == [[(4,)], [(5,)], [(7,)]]


async def test_close_finishes_what_is_queued_and_takes_nothing_more() -> None:
    before = worker_threads()
    async with occupied(workers=2) as (batcher, backend):
        waiting = [await begin(batcher, job(token)) for token in range(5, 25)]
        closing = asyncio.create_task(asyncio.to_thread(batcher.close, PATIENCE))
        while batcher.is_alive():
            await asyncio.sleep(0)
        with pytest.raises(NotReady, match="no longer takes work") as caught:
            await batcher.submit([job(5)])
        assert caught.value.retry_after == 1.0
        assert not backend.is_closed
        backend.release()
        assert [pooled(results) for results in await asyncio.gather(*waiting)] == [[[t, 1]] for t in range(5, 25)]
        assert await closing
        assert backend.is_closed
        assert worker_threads() <= before
        assert batcher.close(0)


async def test_close_abandons_what_is_left_when_its_time_is_up() -> None:
    async with occupied(on_token={8: OSError()}) as (batcher, backend):
        tasks = [await begin(batcher, job(token)) for token in (8, 9)]
        backend.permit(2)
        await asyncio.to_thread(backend.wait_for_runs, 3)
        tasks.append(await begin(batcher, job(5), job(6, 6)))
        assert not await asyncio.to_thread(batcher.close, 0.02)
        assert backend.runs == [[(1,)], [(8,), (9,)], [(8,)]], "a text of a failed batch waits to be run again"
        for task in tasks:
            with pytest.raises(NotReady) as caught:
                await task
            assert caught.value.retry_after == 1.0
        assert batcher.queued_texts == 0
        assert not backend.is_closed, "a run is still going on in it"


def test_before_the_start_nothing_is_taken() -> None:
    batcher = Batcher(FakeBackend(), workers=1, max_batch_tokens=8, max_queue_tokens=8)
    with pytest.raises(NotReady):
        asyncio.run(batcher.submit([job(1)]))
    assert not batcher.is_alive()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_everything_at_once_leaves_nothing_behind(
    run: Callable[[Coroutine[Any, Any, None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Requests that succeed, fail, kill their worker, expire and are cancelled, side by side."""
    caplog.set_level(logging.CRITICAL)

    async def one(batcher: Batcher, index: int) -> str:
        jobs = [job(*range(20 + index, 21 + index + (index + j) % 5)) for j in range(1 + index % 4)]
        if index % 13 == 0:
            jobs.append(job(7))
        if index % 29 == 0:
            jobs.append(job(11))
        deadline = time.monotonic() + (0.001 if index % 5 == 0 else PATIENCE)
        task = asyncio.create_task(batcher.submit(jobs, deadline=deadline))
        if index % 3 == 0:
            await asyncio.sleep(0)
            task.cancel()
        try:
            results = await task
        except (ServiceError, asyncio.CancelledError) as error:
            return type(error).__name__
        assert pooled(results) == [[one.input_ids.sum(), len(one.input_ids)] for one in jobs]
        return "ok"

    async def test() -> None:
        errors = {7: OSError(), 11: SystemExit()}
        with running(errors, workers=3, max_queue_tokens=10**6) as (batcher, _):
            outcomes = await asyncio.gather(*(one(batcher, index) for index in range(1, 600)))
            expected = {"ok", "CancelledError", "InferenceFailed"}
            assert expected <= set(outcomes) <= expected | {"DeadlineExceeded"}
            assert outcomes.count("ok") >= 100  # a dying worker takes whom it ran along, the rest of about 290 succeed
            assert (batcher.queued_texts, batcher.queued_tokens, batcher.oldest_age) == (0, 0, 0.0)
            results = await batcher.submit([job(30)] * 50, deadline=time.monotonic() + PATIENCE)
            assert pooled(results) == [[30, 1]] * 50
            assert await batcher.submit([]) == []
            assert batcher.is_alive()

    run(test())
