import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.analysis.arrays import Float32Array, Float64Array
from model.analysis.reductions import classical_scaling, max_over_heads, mean_over_heads, rollout, saliency
from tests.model.analysis.maps import assert_rows_sum_to, draw_maps, drawn_maps, uniform


@settings(deadline=None)
@given(drawn_maps())
def test_against_loops_over_heads(weights: Float32Array) -> None:
    mean, largest = mean_over_heads(weights), max_over_heads(weights)
    for query, key in np.ndindex(mean.shape):
        assert mean[query, key] == pytest.approx(sum(map(float, weights[:, query, key])) / len(weights), abs=1e-7)
        assert largest[query, key] == max(weights[:, query, key])


def test_layers_and_texts_in_front_and_few_queries(generator: np.random.Generator) -> None:
    weights = draw_maps(generator, 2, 3, 4, 1, 6)  # [batch, layer, head, query, key]
    for reduce in (mean_over_heads, max_over_heads):
        reduced = reduce(weights)
        assert reduced.shape == (2, 3, 1, 6)
        assert reduced.dtype == np.float32
        np.testing.assert_array_equal(reduced[1, 2], reduce(weights[1, 2]))


@st.composite
def drawn_layers(draw: st.DrawFn) -> list[Float32Array]:
    """Layers of one text with 0 to 4 heads each, at least one layer with heads."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tokens = draw(st.integers(1, 10))
    heads = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any))
    return [draw_maps(generator, n, tokens, tokens) if n else np.zeros((0, 0, 0), np.float32) for n in heads]


def step_by_step(attentions: list[Float32Array]) -> Float64Array:
    """Abnar & Zuidema's own order: add the residual, divide by the row sums, multiply upwards from the first layer."""
    tokens = max(weights.shape[-1] for weights in attentions)
    joint = np.eye(tokens)
    for weights in attentions:
        mean = weights.astype(np.float64).mean(axis=0) if len(weights) else np.zeros((tokens, tokens))
        augmented = mean + np.eye(tokens)
        joint = (augmented / augmented.sum(axis=-1)[:, np.newaxis]) @ joint
    return joint


@settings(deadline=None)
@given(drawn_layers())
def test_rows_of_the_whole_and_single_ones_are_the_definitions_step_by_step(attentions: list[Float32Array]) -> None:
    found = rollout(attentions)
    np.testing.assert_allclose(found, step_by_step(attentions), rtol=0, atol=1e-6)
    assert_rows_sum_to(found, 1)
    tokens = len(found)
    np.testing.assert_allclose(rollout(attentions, np.eye(tokens)[[0, -1]]), found[[0, -1]], rtol=0, atol=1e-6)
    np.testing.assert_allclose(saliency(attentions, np.full(tokens, 1 / tokens)), found.mean(axis=0), rtol=0, atol=1e-6)


def test_layers_without_heads_pass_through(generator: np.random.Generator) -> None:
    layer = draw_maps(generator, 2, 6, 6)
    none = np.zeros((0, 6, 6), dtype=np.float32)
    np.testing.assert_array_equal(rollout([none, layer, none]), rollout([layer]))
    np.testing.assert_array_equal(rollout([none, none]), np.eye(6))
    half = 0.5 * uniform(4)[np.newaxis]  # rows of lost mass are made whole: A~ = (half + I) / 1.5
    np.testing.assert_allclose(rollout([half]), (half[0] + np.eye(4)) / 1.5, atol=1e-7)
    for other in (0, 5, 9):  # its n means nothing
        np.testing.assert_array_equal(rollout([layer, np.zeros((0, other, other), np.float32)]), rollout([layer]))


def distances_of(points: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(points[:, None] - points, axis=-1))


def test_a_plane_is_found_again_up_to_rotation_and_stress_says_what_is_lost(generator: np.random.Generator) -> None:
    distances = distances_of(generator.normal(size=(12, 2)))
    points, stress = classical_scaling(distances)
    np.testing.assert_allclose(distances_of(points), distances, atol=1e-9)
    assert stress == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-9)
    corners = 1.0 - np.eye(4)  # a tetrahedron
    points, stress = classical_scaling(corners)
    assert stress == pytest.approx(np.sqrt(((distances_of(points) - corners) ** 2).sum() / 12))
    assert stress > 0.1
    assert classical_scaling(np.zeros((1, 1)))[0].tolist() == [[0, 0]]
    assert classical_scaling(np.zeros((3, 3)))[1] == 0
