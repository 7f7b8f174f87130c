from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.analysis.arrays import Float32Array
from model.analysis.top_k import top_k
from tests.model.analysis.maps import draw_maps, drawn_maps, uniform


@st.composite
def maps_with_ties(draw: st.DrawFn) -> Float32Array:
    """Maps, half of them rounded so coarsely that many weights of a row are equal."""
    weights = draw(drawn_maps(max_tokens=20))
    return np.round(weights, 1) if draw(st.booleans()) else weights


def test_largest_first_and_what_is_left_out() -> None:
    found = top_k(np.array([[0.1, 0.4, 0.2, 0.3]], dtype=np.float32), 2)
    np.testing.assert_array_equal(found.indices, [[1, 3]])
    np.testing.assert_array_equal(found.weights, np.array([[0.4, 0.3]], dtype=np.float32))
    np.testing.assert_allclose(found.left_out, [0.3], atol=1e-7)


def test_equal_weights_come_in_the_order_of_their_keys() -> None:
    found = top_k(uniform(6), 4)
    np.testing.assert_array_equal(found.indices, [[0, 1, 2, 3]] * 6)
    np.testing.assert_allclose(found.left_out, [2 / 6] * 6, atol=1e-7)


def test_zeros_of_either_sign_are_equal() -> None:
    found = top_k(np.array([[-0.0, 1.0, 0.0, -0.0]], dtype=np.float32), 3)
    np.testing.assert_array_equal(found.indices, [[1, 0, 2]])


@settings(deadline=None)
@given(maps_with_ties(), st.integers(1, 24))
def test_against_a_full_stable_sort_and_torch(weights: Float32Array, k: int) -> None:
    found = top_k(weights, k)
    kept = min(k, weights.shape[-1])
    expected = np.argsort(-weights, axis=-1, kind="stable")[..., :kept]
    np.testing.assert_array_equal(found.indices, expected)
    np.testing.assert_array_equal(found.weights, torch.from_numpy(weights).topk(kept).values.numpy())
    assert [array.dtype.name for array in found] == ["int32", "float32", "float32"]


@settings(deadline=None)
@given(maps_with_ties(), st.integers(1, 24))
def test_returned_and_left_out_are_the_whole_row(weights: Float32Array, k: int) -> None:
    found = top_k(weights, k)
    total = found.weights.sum(axis=-1, dtype=np.float64) + found.left_out
    np.testing.assert_allclose(total, weights.sum(axis=-1, dtype=np.float64), atol=1e-7)
    assert (found.left_out >= 0).all()
    if k >= weights.shape[-1]:
        assert not found.left_out.any()


@settings(deadline=None)
@given(drawn_maps(), st.integers(1, 12), st.randoms(use_true_random=False))
def test_permuting_keys_permutes_indices(weights: Float32Array, k: int, shuffler: Random) -> None:
    order = list(range(weights.shape[-1]))
    shuffler.shuffle(order)
    distinct = weights.argsort(axis=-1).astype(np.float32)  # without ties, whose order is the keys'
    found, permuted = top_k(distinct, k), top_k(distinct[..., order], k)
    np.testing.assert_array_equal(np.array(order)[permuted.indices], found.indices)
    np.testing.assert_array_equal(permuted.weights, found.weights)


@pytest.mark.parametrize(("seed", "nonzero", "sign"), [(8, 20, -1), (7, 40, 1)])
def test_rounding_is_no_mass_left_out(seed: int, nonzero: int, sign: int) -> None:
    generator = np.random.default_rng(seed)
    values = np.exp(generator.standard_normal(nonzero) * 9)
    row = np.zeros(40, dtype=np.float32)
    row[generator.permutation(40)[:nonzero]] = values
    row /= row.sum()
    in_another_order = np.sort(row)[::-1][:nonzero].sum(dtype=np.float64)
    assert np.sign(row.sum(dtype=np.float64) - in_another_order) == sign
    assert top_k(row[np.newaxis], nonzero).left_out.tolist() == [0.0]


def test_any_axes_in_front_and_single_rows(generator: np.random.Generator) -> None:
    weights = draw_maps(generator, 2, 3, 1, 9)[..., ::-1]  # not contiguous
    found = top_k(weights, 4)
    assert (found.indices.shape, found.left_out.shape) == ((2, 3, 1, 4), (2, 3, 1))
    np.testing.assert_array_equal(found.indices[1, 2], top_k(weights[1, 2], 4).indices)


def test_a_map_without_keys_has_none_to_return() -> None:
    found = top_k(np.zeros((2, 0, 0), dtype=np.float32), 3)
    assert (found.indices.shape, found.weights.shape, found.left_out.shape) == ((2, 0, 0), (2, 0, 0), (2, 0))
    assert top_k(np.zeros((2, 1, 0), dtype=np.float32), 3).left_out.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("k", [0, -1])
def test_refuses_to_return_nothing(k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k}: expected at least 1"):
        top_k(uniform(3), k)
