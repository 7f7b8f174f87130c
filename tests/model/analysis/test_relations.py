import numpy as np
import pytest

from model.analysis.relations import DIRECTIONS, best_offset, predict_heads


def test_both_directions_by_hand() -> None:
    weights = np.array([[[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.2, 0.5, 0.3]]], np.float32)
    looks_at, looked_at_by = predict_heads(weights, np.ones(3, bool))
    assert DIRECTIONS == ("dependent_to_head", "head_to_dependent")
    assert looks_at[0].tolist() == [2, 0, 1]
    assert looked_at_by[0].tolist() == [1, 2, 0]  # column 0: .6 from 1; column 1: .5 from 2; column 2: .7 from 0


def test_neither_the_word_itself_nor_what_is_no_candidate_is_predicted() -> None:
    weights = np.array([[[0.9, 0.0, 0.1], [0.0, 0.9, 0.1], [0.5, 0.4, 0.1]]], np.float32)
    looks_at, looked_at_by = predict_heads(weights, np.array([False, True, True]))
    assert looks_at[0].tolist()[1:] == [2, 1]
    assert looked_at_by[0].tolist()[1:] == [2, 1]


def test_best_offset_takes_the_nearer_of_equals() -> None:
    assert best_offset([1, 1, -2]) == (1, 2 / 3)
    assert best_offset([-3, 2]) == (2, 0.5)
    assert best_offset([-1, 1]) == (1, 0.5)
    with pytest.raises(ValueError, match="no case"):
        best_offset([])
