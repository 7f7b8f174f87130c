from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.analysis.arrays import BoolArray, Float32Array
from model.analysis.special import exclude_special
from tests.model.analysis.maps import assert_rows_sum_to, draw_maps, drawn_maps, uniform

ENDS = np.array([True, False, False, False, True])


@st.composite
def maps_and_special(draw: st.DrawFn) -> tuple[Float32Array, BoolArray]:
    weights = draw(drawn_maps())
    count = weights.shape[-1]
    return weights, np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=np.bool_)


def test_the_mass_lost_stays_visible() -> None:
    np.testing.assert_array_equal(exclude_special(uniform(5), ENDS), np.full((3, 3), np.float32(0.2)))


def test_renormalised_rows_keep_their_proportions() -> None:
    weights = np.tile(np.array([0.5, 0.1, 0.2, 0.1, 0.1], dtype=np.float32), (5, 1))
    found = exclude_special(weights, ENDS, renormalise=True)
    np.testing.assert_allclose(found, [[0.25, 0.5, 0.25]] * 3, atol=1e-7)


def test_a_row_that_kept_nothing_stays_zero() -> None:
    weights = np.zeros((5, 5), dtype=np.float32)
    weights[:, 0] = 1
    np.testing.assert_array_equal(exclude_special(weights, ENDS, renormalise=True), np.zeros((3, 3)))


@settings(deadline=None)
@given(maps_and_special())
def test_sums_of_rows(drawn: tuple[Float32Array, BoolArray]) -> None:
    weights, special = drawn
    kept_mass = weights[:, ~special].astype(np.float64)[:, :, ~special].sum(axis=-1)
    assert_rows_sum_to(exclude_special(weights, special), kept_mass)
    assert_rows_sum_to(exclude_special(weights, special, renormalise=True), kept_mass > 0)


@settings(deadline=None)
@given(maps_and_special(), st.booleans(), st.randoms(use_true_random=False))
def test_permuting_tokens_permutes_what_is_left(
    drawn: tuple[Float32Array, BoolArray], renormalise: bool, shuffler: Random
) -> None:
    weights, special = drawn
    order = list(range(len(special)))
    shuffler.shuffle(order)
    kept = [token for token in range(len(special)) if not special[token]]
    left = [kept.index(token) for token in order if not special[token]]
    found = exclude_special(weights[:, order][:, :, order], special[order], renormalise=renormalise)
    expected = exclude_special(weights, special, renormalise=renormalise)[:, left][:, :, left]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_special_row_that_was_asked_for_stays(generator: np.random.Generator) -> None:
    weights = draw_maps(generator, 2, 3, 1, 5)
    found = exclude_special(weights, ENDS, queries=np.array([False]))
    np.testing.assert_array_equal(found, weights[..., 1:4])
    assert found.flags.c_contiguous


def test_a_text_of_special_tokens_only_leaves_an_empty_map() -> None:
    special = np.array([True, True])
    assert exclude_special(uniform(2)[np.newaxis], special).shape == (1, 0, 0)
    assert exclude_special(uniform(2)[np.newaxis], special, renormalise=True).shape == (1, 0, 0)


def test_nothing_special_changes_nothing(generator: np.random.Generator) -> None:
    weights = draw_maps(generator, 2, 4, 4)
    np.testing.assert_array_equal(exclude_special(weights, np.zeros(4, dtype=np.bool_)), weights)


def test_refuses_masks_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"masks of \(4,\) queries and \(4,\) keys do not fit .* \(5, 5\)"):
        exclude_special(uniform(5), ENDS[:4])
    with pytest.raises(ValueError, match=r"masks of \(5,\) queries and \(5,\) keys do not fit .* \(1, 5\)"):
        exclude_special(uniform(5)[:1], ENDS)
