from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from benchmarks.lib.tokens import (
    in_arrival_order,
    make_batch,
    make_batches,
    of_shape,
    one_at_a_time,
    sorted_by_length,
    text_of_tokens,
)
from tests.tokenizers import TEXTS, bpe, wordpiece

ROWS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=30)


def test_a_batch_is_padded_on_the_right() -> None:
    batch = make_batch([[5, 6, 7], [8]], attention_layers=(2,))
    np.testing.assert_array_equal(batch.input_ids, [[5, 6, 7], [8, 0, 0]])
    np.testing.assert_array_equal(batch.lengths, [3, 1])
    assert batch.attention_layers == (2,)


@given(rows=ROWS, budget=st.integers(1, 40))
def test_every_plan_runs_every_text_once(rows: list[list[int]], budget: int) -> None:
    for plan in (one_at_a_time(rows), in_arrival_order(rows, 4), sorted_by_length(rows, budget)):
        assert sorted(index for run in plan for index in run) == list(range(len(rows)))
        assert sum(int(batch.lengths.sum()) for batch in make_batches(rows, plan)) == sum(map(len, rows))


@given(rows=ROWS, budget=st.integers(1, 40))
def test_sorted_runs_keep_their_budget_and_go_from_long_to_short(rows: list[list[int]], budget: int) -> None:
    plan = sorted_by_length(rows, budget)
    lengths = [len(rows[index]) for run in plan for index in run]
    assert lengths == sorted(lengths, reverse=True)
    for run, batch in zip(plan, make_batches(rows, plan), strict=True):
        assert batch.input_ids.size <= budget or len(run) == 1
    for run, following in pairwise(plan):  # a run ends only where one more text would not fit
        assert len(rows[run[0]]) * (len(run) + 1) > budget
        assert len(rows[following[0]]) <= len(rows[run[-1]])


def test_a_shape_is_cut_from_running_text() -> None:
    batch = of_shape(iter(range(100)), 2, 3)
    np.testing.assert_array_equal(batch.input_ids, [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(batch.lengths, [3, 3])


def test_texts_as_they_come_stay_in_order() -> None:
    assert in_arrival_order([[1]] * 5, 2) == [[0, 1], [2, 3], [4]]
    assert sorted_by_length([], 10) == []


def test_a_shape_needs_enough_text() -> None:
    with pytest.raises(ValueError, match="iterator too short"):
        of_shape(iter(range(5)), 2, 3)


@pytest.mark.parametrize("make", [wordpiece, bpe])
def test_a_text_of_so_many_tokens(make: Callable[[], Tokenizer]) -> None:
    words = [word for text in TEXTS for word in text.split()] * 4
    for count in (7, 30):
        text = text_of_tokens(make(), words, count)
        assert len(make().encode(text).tokens) == count
        assert set(text.split()) <= set(words)


def test_a_text_of_more_tokens_than_the_words_have() -> None:
    with pytest.raises(ValueError, match="expected 50"):
        text_of_tokens(wordpiece(), ["cats", "mats"], 50)
