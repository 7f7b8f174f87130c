"""Requests take turns on threads, and are refused once too much waits; texts are explained so."""

import asyncio
import gc
import threading
import time
import weakref
from unittest.mock import Mock

import numpy as np
import pytest

from service.batching.decompositions import FIXED_ROWS, RUN_ROWS, DecompositionQueue, source_runs
from service.batching.work_queue import Part, WorkQueue
from service.errors import DeadlineExceeded, Invalid, NotReady, Overloaded
from service.inference.backend import WholeText
from tests.service.fake_backend import PATIENCE
from tests.service.fake_engine import FakeDecomposer, hidden_states

LONG = 5000


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


async def begin(queue: WorkQueue, *parts: Part, deadline: float | None = None) -> asyncio.Task[list[str]]:
    """A request that waits in the queue when this returns."""
    task = asyncio.create_task(queue.run(parts, list, deadline))
    await asyncio.sleep(0)
    return task


async def test_a_request_for_which_the_system_gives_no_thread_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, work = WorkQueue("work", 1), Work()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await queue.run([work.part("first")], list, None)
    assert queue.waiting == 0
    work.release()
    assert await queue.run([work.part("second")], list, None) == ["second"]
    assert work.done == ["second"]


async def test_a_long_request_leaves_others_their_turns_and_counts_what_waits() -> None:
    queue, work = WorkQueue("work", 1), Work()
    large = await begin(queue, *(work.part(f"large {index}") for index in range(20)))
    await work.wait_begun()
    small = await begin(queue, work.part("small"))
    assert queue.waiting == 20 * LONG  # the first part is no longer waiting
    work.release()
    assert await small == ["small"]
    assert await large == [f"large {index}" for index in range(20)]
    assert work.done.index("small") <= 2, "behind the part that ran, and perhaps one more"
    assert queue.waiting == 0
    queue.close()


async def test_what_would_wait_too_long_is_refused_with_when_to_come_back() -> None:
    queue, work = WorkQueue("work", 1, max_delay=1.0), Work()
    queue._rate.add(1000, 1.0)
    waiting = [await begin(queue, work.part("a", 10_000))]
    await work.wait_begun()
    late = await begin(queue, work.part("b", 1000), deadline=time.monotonic() + 1.5)
    with pytest.raises(Overloaded, match=r"the expected wait is 1.00 s"):  # which leaves too little for its own 1 s
        await late
    waiting += [await begin(queue, work.part("a", 10_000)) for _ in range(16)]
    assert not any(task.done() for task in waiting), "each may wait for 1 s and 16 times its own 10 s"
    refused = await begin(queue, work.part("b", 10_000))
    with pytest.raises(Overloaded, match=r"the expected wait is 170.00 s; try again later") as caught:
        await refused
    assert caught.value.retry_after is not None
    assert caught.value.retry_after == pytest.approx(9.0)
    assert queue.early_refusal(10_000) is not None
    work.release()
    await asyncio.gather(*waiting)
    queue.close()


async def test_what_nobody_waits_for_is_dropped_and_harms_nobody() -> None:
    queue, work = WorkQueue("work", 1), Work()
    left = await begin(queue, work.part("runs"), work.part("never"))
    await work.wait_begun()
    gone = await begin(queue, work.part("gone"))
    late = await begin(queue, work.part("late"), deadline=time.monotonic() + 0.01)
    for task in (left, gone):
        task.cancel()
    with pytest.raises(DeadlineExceeded):
        await late
    with pytest.raises(DeadlineExceeded):
        await queue.run([work.part("later")], list, time.monotonic() - 1)
    assert queue.waiting == 0
    behind = await begin(queue, work.part("behind"))
    work.release()
    assert await behind == ["behind"]
    queue.close()
    queue.pool.shutdown()
    assert (work.done, queue._at_work) == (["runs", "behind"], 0), "work that is done is ahead of no request"


async def test_a_part_that_fails_fails_its_request_alone() -> None:
    def fail() -> None:
        raise Invalid("no such text")

    queue, work = WorkQueue("work", 1), Work()
    work.release()
    bad, good = await begin(queue, Part(LONG, fail), work.part("rest")), await begin(queue, work.part("good"))
    assert await good == ["good"]
    with pytest.raises(Invalid, match="no such text"):
        await bad
    queue.close()
    assert work.done == ["good"]


async def test_a_request_that_failed_is_gone_without_a_collection_of_garbage() -> None:
    def fail(_: list[str]) -> None:
        raise Invalid("no such text")

    queue, work = WorkQueue("work", 1), Work()
    part, gone = work.part("a"), threading.Event()
    weakref.finalize(part.work, gone.set)
    work.release()
    gc.disable()
    try:
        with pytest.raises(Invalid):
            await queue.run([part], fail, None)
        del part
        assert await asyncio.to_thread(gone.wait, PATIENCE)
    finally:
        gc.enable()
    queue.close()


async def test_what_comes_while_all_threads_work_adds_nothing_to_their_list() -> None:
    queue, work = WorkQueue("work", 2), Work()
    tasks = [await begin(queue, work.part("a"), work.part("b"), work.part("c")) for _ in range(50)]
    await work.wait_begun()
    await work.wait_begun()
    assert queue.pool._work_queue.qsize() == 0
    work.release()
    await asyncio.gather(*tasks)
    assert len(work.done) == 150
    for _ in range(5):
        await asyncio.sleep(0.01)  # the threads have nothing to do by then
        assert await asyncio.wait_for(queue.run([work.part("later")], list, None), PATIENCE) == ["later"]
    queue.close()


def text(tokens: int) -> WholeText:
    return WholeText(np.arange(tokens) % 14)


def submit(queue: DecompositionQueue, *texts: WholeText) -> list[np.ndarray]:
    return [found.parts for found in asyncio.run(queue.submit(texts)).texts]


def test_a_text_is_cut_into_runs_of_bounded_size_and_joined_again() -> None:
    decomposer = FakeDecomposer()
    queue = DecompositionQueue(lambda: decomposer, threads=2)
    long = text(300)
    (parts,) = submit(queue, long)
    assert sorted(place for run in decomposer.sources for place in run) == list(range(300))
    assert max(map(len, decomposer.sources)) * 300 <= RUN_ROWS
    np.testing.assert_allclose(parts, 0.75 / 300 * hidden_states(long.input_ids), atol=1e-7)
    queue.close()


@pytest.mark.parametrize("tokens", [1, 1500, 3000])
def test_a_run_has_one_source_if_two_are_too_many(tokens: int) -> None:
    runs = source_runs(text(tokens))
    np.testing.assert_array_equal(np.concatenate(runs), np.arange(tokens))
    assert max(map(len, runs)) == 1


def test_the_decomposer_is_loaded_once_and_only_when_asked_for() -> None:
    load = Mock(return_value=FakeDecomposer())
    queue = DecompositionQueue(load, threads=2)
    load.assert_not_called()
    submit(queue, text(5), text(300))
    submit(queue, text(5))
    load.assert_called_once()
    queue.close()


def test_what_would_wait_too_long_is_refused_and_a_large_request_holds_up_no_small_one() -> None:
    decomposer = FakeDecomposer()
    seconds: list[float] = []
    queue = DecompositionQueue(lambda: decomposer, threads=1, max_delay=0.0, on_run=seconds.append)

    async def overload() -> Overloaded:
        await queue.submit([text(40)])
        assert len(seconds) == 1
        decomposer.gate.clear()
        waiting = [asyncio.create_task(queue.submit([text(400)]))]
        waiting += [asyncio.create_task(queue.submit([text(2)])) for _ in range(15)]
        while len(decomposer.sources) < 2:
            await asyncio.sleep(0)
        assert queue.waiting_rows == 400**2 + 15 * 2**2
        assert not any(task.done() for task in waiting)
        with pytest.raises(Overloaded) as refused:
            await queue.submit([text(2)])
        decomposer.gate.set()
        await asyncio.gather(*waiting)
        assert queue.waiting_rows == 0
        return refused.value

    assert asyncio.run(overload()).retry_after
    queue.close()


def test_what_a_run_of_a_few_tokens_costs_says_little_about_long_texts() -> None:
    queue = DecompositionQueue(FakeDecomposer, threads=1)
    queue._queue._rate = rate = Mock(wraps=queue._queue._rate, workers=1)
    submit(queue, text(3), text(256))
    assert rate.seconds_for.call_args_list[0].args[0] == 3**2 + 256**2 + (1 + 32) * FIXED_ROWS
    assert [call.args[0] - FIXED_ROWS for call in rate.add.call_args_list] == [3 * 3, *[8 * 256] * 32]
    queue.close()


async def test_closing_ends_what_runs_and_refuses_what_waits_and_what_comes() -> None:
    decomposer = FakeDecomposer()
    queue = DecompositionQueue(lambda: decomposer, threads=1)
    decomposer.gate.clear()
    waiting = [asyncio.create_task(queue.submit([text(3)])) for _ in range(3)]
    while not decomposer.sources:
        await asyncio.sleep(0)
    await asyncio.to_thread(queue.close)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert list(map(type, outcomes)) == [NotReady] * 3
    with pytest.raises(NotReady, match="no longer takes work"):
        await queue.submit([text(3)])
