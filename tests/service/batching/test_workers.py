"""Workers: texts of a batch get what they would get alone, unwanted runs are cancelled, models share the cores."""

import asyncio
import os
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.batching import batcher as batching
from service.batching.batcher import WORKER_NICE
from service.batching.cores import KEPT_SECONDS, CoreShare, CoreShares
from service.batching.jobs import Job, collate, separate
from service.errors import DeadlineExceeded, InferenceFailed, NotReady, Overloaded
from service.inference.backend import Batch, BatchOutput, Cancellation
from tests.service.batching.test_batcher import begin, occupied, pooled, running, worker_threads
from tests.service.fake_backend import ENDLESS, PATIENCE, FakeBackend, job

HEADS = {0: 3, 2: 0, 4: 1}  # by layer; a layer may have no heads


def together(jobs: list[Job]) -> Batch:
    return collate(jobs, Cancellation())


def compute(batch: Batch) -> BatchOutput:
    """Outputs that name where each number came from: NaN wherever a row or column is padding."""
    texts, longest = batch.input_ids.shape
    hidden = np.full((texts, longest, 2), np.nan, dtype=np.float32)
    shapes = {layer: (texts, HEADS[layer], longest, longest) for layer in batch.attention_layers}
    attentions = {layer: np.full(shape, np.nan, dtype=np.float32) for layer, shape in shapes.items()}
    for row, length in enumerate(batch.lengths):
        ids = batch.input_ids[row, :length]
        hidden[row, :length] = ids[:, None]
        for layer, weights in attentions.items():
            for head in range(HEADS[layer]):
                weights[row, head, :length, :length] = 1000 * layer + 100 * head + ids[:, None] + ids[None, :] / 100
    pooled = np.array([[row.sum(), len(row)] for row in batch.input_ids], dtype=np.float32)
    return BatchOutput(pooled, hidden if batch.wants_tokens else None, attentions)


def test_texts_with_gates_and_without_ride_together() -> None:
    masked = Job(np.array([1, 2]), head_gates=np.array([0.0, 1.0, 0.5], dtype=np.float32))
    batch = together([job(5), masked, job(7, 8, 9)])
    assert batch.head_gates is not None
    assert batch.head_gates.tolist() == [[1, 1, 1], [0, 1, 0.5], [1, 1, 1]]
    assert together([job(5), job(6)]).head_gates is None
    alone = together([masked]).head_gates
    assert alone is not None
    assert alone.tolist() == [[0, 1, 0.5]]


def test_norms_go_to_the_texts_that_want_them_without_padding() -> None:
    layers = (0, 2)
    jobs = [job(5, layers=layers), Job(np.array([6, 7, 8]), layers, wants_norms=True)]
    batch = together(jobs)
    assert batch.wants_norms
    norms = {0: np.arange(18, dtype=np.float32).reshape(2, 3, 3), 2: np.zeros((0, 0, 0), np.float32)}
    output = replace(compute(batch), value_norms=norms)
    without, asked = separate(jobs, output, queue_seconds=[0, 0], inference_seconds=0)
    assert without.value_norms == {}
    assert asked.value_norms[0].tolist() == norms[0][1].tolist()
    assert asked.value_norms[2].shape == (0, 3)


@given(
    texts=st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=6), min_size=1, max_size=5),
    layers=st.sampled_from([(), (0,), (0, 2, 4)]),
    wants=st.data(),
)
def test_each_text_gets_what_it_would_get_alone_and_no_padding(
    texts: list[list[int]], layers: tuple[int, ...], wants: st.DataObject
) -> None:
    jobs = [job(*ids, layers=layers, wants_tokens=wants.draw(st.booleans())) for ids in texts]
    waits = [float(index) for index in range(len(jobs))]
    batch = together(jobs)
    assert {str(batch.input_ids.dtype), str(batch.lengths.dtype)} == {"int64"}
    results = separate(jobs, compute(batch), queue_seconds=waits, inference_seconds=0.5)
    for index, (one, result) in enumerate(zip(jobs, results, strict=True)):
        (alone,) = separate([one], compute(together([one])), queue_seconds=[0.0], inference_seconds=0.5)
        assert result.output[0] == alone.output[0]
        assert (result.queue_seconds, result.inference_seconds) == (float(index), 0.5)
        assert tuple(result.attentions) == layers
        for layer in layers:
            weights = result.attentions[layer]
            assert weights.shape == (HEADS[layer], len(texts[index]), len(texts[index]))
            np.testing.assert_array_equal(weights, alone.attentions[layer])
            assert weights.flags.c_contiguous
        assert (result.last_hidden_state is not None) == one.wants_tokens
        if result.last_hidden_state is not None:
            np.testing.assert_array_equal(result.last_hidden_state, alone.last_hidden_state)
            assert result.last_hidden_state.flags.c_contiguous


def test_a_start_for_which_there_are_too_few_threads_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        if thread.name == "polyhead-worker-2":
            raise RuntimeError("can't start new thread")
        begin_thread(thread)

    begin_thread, before, backend = threading.Thread.start, worker_threads(), FakeBackend()
    monkeypatch.setattr(threading.Thread, "start", start)
    batcher = batching.Batcher(backend, workers=4, max_batch_tokens=64, max_queue_tokens=1000)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        batcher.start()
    assert (backend.is_closed, batcher.is_alive(), batcher.close(0)) == (True, False, True)
    assert worker_threads() <= before


@pytest.mark.parametrize("error", [SystemExit(1), GeneratorExit()])
async def test_a_worker_outlives_whatever_its_backend_raises(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with running(on_token={5: error}) as (batcher, _):
        with pytest.raises(InferenceFailed):
            await batcher.submit([job(5)])
        assert pooled(await batcher.submit([job(7, 7, 7)])) == [[21, 3]]
        assert batcher.is_alive()
    assert type(error).__name__ in caplog.text


def test_an_event_loop_that_is_gone_does_not_stop_the_worker() -> None:
    with running() as (batcher, backend):
        backend.hold()
        loop = asyncio.new_event_loop()
        task = loop.create_task(batcher.submit([job(5)]))
        loop.run_until_complete(asyncio.sleep(0))
        backend.wait_for_runs(1)
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        loop.close()
        backend.release()
        assert pooled(asyncio.run(batcher.submit([job(6)]))) == [[6, 1]]
        assert batcher.is_alive()


@pytest.mark.parametrize("has_deadline", [False, True])
async def test_a_run_ends_with_its_only_request(has_deadline: bool, caplog: pytest.LogCaptureFixture) -> None:
    with running() as (batcher, backend):
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
    before = worker_threads()
    with running() as (batcher, backend):
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
        batcher.rate.add(1, 10.0)  # a token in ten seconds
        waiting = [await begin(batcher, job(*[1] * 50)) for _ in range(4)]
        with pytest.raises(Overloaded, match="the expected wait is"):
            await batcher.submit([job(2, 2)], deadline=time.monotonic() + 10)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_a_run_that_takes_too_long_is_not_alive_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_alive_a_minute_later() -> bool:
        with monkeypatch.context() as later:
            later.setattr(batching, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 61.0))
            return batcher.is_alive()

    async with occupied(max_run_seconds=60.0) as (batcher, backend):
        assert batcher.is_alive()
        assert not is_alive_a_minute_later()
        backend.release()
        while any(worker.busy_since is not None for worker in batcher.workers):
            await asyncio.sleep(0)
        assert is_alive_a_minute_later(), "a worker that waits for work does not hang"


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux only")
async def test_workers_leave_the_event_loop_its_turn() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    niceness: list[int] = []
    before = priority()
    with running() as (batcher, backend):
        backend.on_token[1] = lambda: niceness.append(priority())
        await batcher.submit([job(1)])
    assert niceness == [min(19, os.getpriority(os.PRIO_PROCESS, 0) + WORKER_NICE)]
    assert priority() == before


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
    shares = CoreShares(2)
    shares.join().__enter__()  # and never ends: two workers have one core between them
    with running(workers=2, max_batch_tokens=1) as (batcher, backend):
        backend.on_token[1] = lambda: time.sleep(0.01)
        batcher.cores = shares.join()
        began = time.monotonic()
        await asyncio.gather(*(batcher.submit([job(1)]) for _ in range(40)))
        expected = batcher.rate.seconds_for(40)
        assert expected > 0.7 * (time.monotonic() - began)
