import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from model.analysis.arrays import BoolArray, Float32Array, IntArray
from model.analysis.reductions import classical_scaling, rollout
from model.analysis.statistics import (
    DIRECTIONS,
    STATISTICS,
    best_offset,
    head_statistics,
    jensen_shannon,
    offset_rate,
    predict_heads,
    rare_token,
    sink,
    variability,
)
from tests.model.analysis.maps import draw_maps, uniform


class Text(NamedTuple):
    weights: Float32Array
    token_ids: IntArray
    special: BoolArray
    punctuation: BoolArray

    def statistics(self) -> dict[str, Float32Array | None]:
        return head_statistics(
            self.weights, token_ids=self.token_ids, special=self.special, punctuation=self.punctuation
        )


def plain(*heads: Float32Array) -> Text:
    """A text of different words between [CLS] and [SEP]."""
    tokens = len(heads[0])
    special = np.zeros(tokens, dtype=np.bool_)
    special[[0, -1]] = True
    return Text(np.stack(heads), np.arange(tokens), special, np.zeros(tokens, dtype=np.bool_))


@st.composite
def texts(draw: st.DrawFn) -> Text:
    """Up to nine tokens of three kinds, any of them special or punctuation."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    heads, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    return Text(
        draw_maps(generator, heads, tokens, tokens, sharpness=draw(st.sampled_from([0.0, 1.0, 4.0, 200.0]))),
        generator.integers(0, 3, tokens),
        generator.random(tokens) < draw(st.sampled_from([0.0, 0.3, 1.0])),
        generator.random(tokens) < 0.3,
    )


def by_definition(text: Text, head: int) -> dict[str, float | None]:
    """The formulas term by term, in Python's floats."""
    tokens = range(len(text.token_ids))
    a = text.weights[head].astype(float).tolist()
    total = sum(map(sum, a))
    special = [token for token in tokens if text.special[token]]
    ordinary = [token for token in tokens if not text.special[token]]
    entropy = mean([-sum(x * math.log(x) for x in row if x > 0) for row in a])
    assert entropy is not None
    return {
        "entropy": entropy,
        "normalized_entropy": entropy / math.log(len(tokens)) if len(tokens) > 1 else None,
        "confidence": mean([max(row[j] for j in ordinary) for row in a]) if ordinary else None,
        "signed_distance": sum(a[i][j] * (i - j) for i in tokens for j in tokens) / total,
        "distance": sum(a[i][j] * abs(i - j) for i in tokens for j in tokens) / total,
        "offset_previous": sum(a[i][i - 1] for i in tokens[1:]) / len(tokens),
        "offset_self": sum(a[i][i] for i in tokens) / len(tokens),
        "offset_next": sum(a[i][i + 1] for i in tokens[:-1]) / len(tokens),
        "special_mass": mean([sum(row[j] for j in special) for row in a]),
        "special_to_special": mean([sum(a[i][j] for j in special) for i in special]),
        "other_to_special": mean([sum(a[i][j] for j in special) for i in ordinary]),
        "punctuation_mass": mean([sum(row[j] for j in tokens if text.punctuation[j]) for row in a]),
        "repeated_token": mean(
            [
                sum(a[i][j] for j in others)
                for i in ordinary
                if (others := [j for j in ordinary if j != i and text.token_ids[i] == text.token_ids[j]])
            ]
        ),
    }


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


@settings(deadline=None, max_examples=100)
@given(texts())
def test_against_the_definitions_term_by_term(text: Text) -> None:
    found = text.statistics()
    assert tuple(found) == STATISTICS
    for head in range(len(text.weights)):
        for name, expected in by_definition(text, head).items():
            values = found[name]
            if expected is None:
                assert values is None, name
            else:
                assert values is not None, name
                assert float(values[head]) == pytest.approx(expected, abs=2e-6), name


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [2, 3, 11])
def test_a_head_that_looks_at_all_it_may_see_has_the_largest_entropy(tokens: int, causal: bool) -> None:
    reach = np.array([0, 1, 4, tokens])
    away = np.arange(tokens)[:, np.newaxis] - np.arange(tokens)
    seen = (np.abs(away) <= reach[:, np.newaxis, np.newaxis]) & ((away >= 0) | (not causal))
    text = plain(*(seen / seen.sum(axis=-1, keepdims=True)).astype(np.float32))
    found = head_statistics(
        text.weights,
        token_ids=text.token_ids,
        special=text.special,
        punctuation=text.punctuation,
        causal=causal,
        reach=reach,
    )
    assert found["entropy"] is not None
    assert found["normalized_entropy"] is not None
    np.testing.assert_allclose(found["entropy"], np.log(seen.sum(axis=-1)).mean(axis=-1), atol=1e-6)
    np.testing.assert_allclose(found["normalized_entropy"], [0, 1, 1, 1], atol=1e-6)


def test_takes_layers_without_heads_and_rows_of_half_precision(generator: np.random.Generator) -> None:
    for shape in ((0, 0, 0), (0, 5, 5)):
        found = plain(uniform(5))._replace(weights=np.zeros(shape, dtype=np.float32)).statistics()
        assert found.pop("repeated_token") is None
        assert all(values is not None and values.shape == (0,) for values in found.values())
    weights = draw_maps(generator, 2, 512, 512).astype(np.float16).astype(np.float32)
    assert plain(*weights).statistics()["entropy"] is not None


def test_refuses_rows_that_are_not_whole() -> None:
    text, whole = plain(uniform(5)), uniform(5)[np.newaxis]
    changes: Any = (
        ({"weights": whole * np.float32(0.6)}, "a row's sum is off 1 by 0.4: statistics are defined on whole rows"),
        ({"weights": whole * np.float32("nan")}, "a row's sum is off 1 by nan"),
    )
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            text._replace(**change).statistics()


@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 100))
def test_equals_scipys_over_rows(heads: int, size: int, seed: int) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.full(size, 0.3), (heads, size)).astype(np.float32)
    expected = np.array([[(jensenshannon(a, b, axis=-1) ** 2).mean() for b in weights] for a in weights])
    found = jensen_shannon(weights)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_array_equal(found, found.T)
    assert (found.diagonal() == 0).all()


def one_hot(targets: list[int], size: int) -> np.ndarray:
    return np.eye(size, dtype=np.float32)[targets][np.newaxis]


def test_sink_is_what_the_first_token_takes() -> None:
    assert sink(one_hot([0, 0, 2, 1], 4)).tolist() == [0.5]
    assert sink(np.full((2, 5, 5), 0.2, np.float32)).tolist() == pytest.approx([0.2, 0.2])


def test_offset_rate_counts_rows_that_have_such_a_key() -> None:
    weights = one_hot([2, 0, 1, 0], 4)
    rate = offset_rate(weights, -1)
    assert rate is not None
    assert rate.tolist() == pytest.approx([2 / 3])  # rows 1 and 2 of 1, 2, 3
    assert offset_rate(weights, -4) is None


def test_rare_token_wants_one_rarest_among_enough() -> None:
    counts = np.array([100, 9, 1, 9, 9, 9, 100])
    special = np.array([True, *[False] * 5, True])
    rate = rare_token(one_hot([2, 2, 3, 2, 2, 6, 2], 7), counts, special)
    assert rate is not None
    assert rate.tolist() == pytest.approx([3 / 5])  # the last query's largest is special: no ordinary one is larger
    assert rare_token(one_hot([0] * 7, 7), np.array([100, 1, 1, 9, 9, 9, 100]), special) is None
    assert rare_token(one_hot([0] * 4, 4), np.array([5, 1, 2, 3]), np.zeros(4, bool)) is None


def test_variability_is_0_for_a_head_blind_to_content_and_near_1_for_one_that_never_repeats() -> None:
    size = 64
    blind = np.broadcast_to(np.full((4, 4), 0.25, np.float32), (size, 1, 4, 4))
    assert variability(blind).tolist() == [[0.0]] * size
    apart = np.zeros((size, 1, 1, size), np.float32)
    apart[np.arange(size), 0, 0, np.arange(size)] = 1  # each text looks at a place of its own
    expected = 1 - 1 / size  # (1 - 1/X + (X - 1)/X) / 2
    np.testing.assert_allclose(variability(apart), expected, rtol=1e-6)


def test_head_words_by_hand_in_both_directions() -> None:
    weights = np.array([[[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.2, 0.5, 0.3]]], np.float32)
    looks_at, looked_at_by = predict_heads(weights, np.ones(3, bool))
    assert DIRECTIONS == ("dependent_to_head", "head_to_dependent")
    assert looks_at[0].tolist() == [2, 0, 1]
    assert looked_at_by[0].tolist() == [1, 2, 0]  # column 0: .6 from 1; column 1: .5 from 2; column 2: .7 from 0
    weights = np.array([[[0.9, 0.0, 0.1], [0.0, 0.9, 0.1], [0.5, 0.4, 0.1]]], np.float32)
    found = predict_heads(weights, np.array([False, True, True]))  # neither the word itself nor what is no candidate
    assert found[:, 0, 1:].tolist() == [[2, 1], [2, 1]]


def test_best_offset_takes_the_nearer_of_equals() -> None:
    assert best_offset([1, 1, -2]) == 1
    assert best_offset([-3, 2]) == 2
    assert best_offset([-1, 1]) == 1


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
