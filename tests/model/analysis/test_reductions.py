from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.analysis.arrays import Float32Array
from model.analysis.reductions import max_over_heads, mean_over_heads
from tests.model.analysis.maps import assert_rows_sum_to, draw_maps, drawn_maps, looking, uniform


def test_mean_of_an_identity_and_a_uniform_head() -> None:
    mean = mean_over_heads(np.stack([np.eye(4, dtype=np.float32), uniform(4)]))
    np.testing.assert_array_equal(mean, np.full((4, 4), 0.125) + np.eye(4) / 2)


def test_max_of_heads_that_look_elsewhere() -> None:
    largest = max_over_heads(np.stack([looking(-1, 5), looking(1, 5), uniform(5)]))
    np.testing.assert_array_equal(largest, np.maximum(looking(-1, 5) + looking(1, 5), np.float32(0.2)))


@settings(deadline=None)
@given(drawn_maps())
def test_against_loops_over_heads(weights: Float32Array) -> None:
    mean, largest = mean_over_heads(weights), max_over_heads(weights)
    for query, key in np.ndindex(mean.shape):
        assert mean[query, key] == pytest.approx(sum(map(float, weights[:, query, key])) / len(weights), abs=1e-7)
        assert largest[query, key] == max(weights[:, query, key])


@settings(deadline=None)
@given(drawn_maps())
def test_rows_of_a_mean_sum_to_one_and_of_a_maximum_to_between_one_and_the_heads(weights: Float32Array) -> None:
    assert_rows_sum_to(mean_over_heads(weights), 1)
    masses = max_over_heads(weights).sum(axis=-1, dtype=np.float64)
    assert masses.min() >= 1 - 1e-6
    assert masses.max() <= len(weights) + 1e-6


def test_rows_of_a_mean_of_a_thousand_heads_sum_to_one(generator: np.random.Generator) -> None:
    assert_rows_sum_to(mean_over_heads(draw_maps(generator, 1024, 3, 40)), 1, tolerance=2e-7)


@settings(deadline=None)
@given(drawn_maps(), st.randoms(use_true_random=False))
def test_order_of_the_heads_does_not_matter(weights: Float32Array, shuffler: Random) -> None:
    order = list(range(len(weights)))
    shuffler.shuffle(order)
    np.testing.assert_allclose(mean_over_heads(weights[order]), mean_over_heads(weights), rtol=1e-6)
    np.testing.assert_array_equal(max_over_heads(weights[order]), max_over_heads(weights))


def test_layers_and_texts_in_front_and_few_queries(generator: np.random.Generator) -> None:
    weights = draw_maps(generator, 2, 3, 4, 1, 6)  # [batch, layer, head, query, key]
    for reduce in (mean_over_heads, max_over_heads):
        reduced = reduce(weights)
        assert reduced.shape == (2, 3, 1, 6)
        assert reduced.dtype == np.float32
        np.testing.assert_array_equal(reduced[1, 2], reduce(weights[1, 2]))


def test_a_layer_without_heads_has_no_map() -> None:
    with pytest.raises(ValueError, match=r"shape \(0, 3, 3\): expected \[..., H, Q, K\] with at least one head"):
        mean_over_heads(np.zeros((0, 3, 3), dtype=np.float32))
    with pytest.raises(ValueError, match="at least one head"):
        max_over_heads(np.zeros((3, 3), dtype=np.float32))
