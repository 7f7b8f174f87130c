import asyncio
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from service.batching.decompositions import FIXED_ROWS, RUN_ROWS, DecompositionQueue, source_runs
from service.errors import NotReady, Overloaded
from service.inference.backend import WholeText
from tests.service.fake_engine import FakeDecomposer, hidden_states


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
    queue._queue._rate = rate = Mock(wraps=queue._queue._rate)
    submit(queue, text(3), text(256))
    assert rate.seconds_for.call_args_list[0].args[0] == 3**2 + 256**2 + (1 + 32) * FIXED_ROWS
    assert [call.args[0] - FIXED_ROWS for call in rate.add.call_args_list] == [3 * 3, *[8 * 256] * 32]
    queue.close()


def test_closing_ends_what_runs_and_refuses_what_waits_and_what_comes() -> None:
    decomposer = FakeDecomposer()
    queue = DecompositionQueue(lambda: decomposer, threads=1)

    async def close() -> list[Any]:
        decomposer.gate.clear()
        waiting = [asyncio.create_task(queue.submit([text(3)])) for _ in range(3)]
        while not decomposer.sources:
            await asyncio.sleep(0)
        await asyncio.to_thread(queue.close)
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert list(map(type, asyncio.run(close()))) == [NotReady] * 3
    with pytest.raises(NotReady):
        submit(queue, text(3))
