import math
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.analysis.arrays import BoolArray, Float32Array, IntArray
from model.analysis.statistics import STATISTICS, head_statistics, row_entropy
from model.attention import MultiHeadAttention
from model.dot_product import AttentionInputs, eager_attention
from tests.model.analysis.maps import draw_maps, looking, uniform


class Text(NamedTuple):
    weights: Float32Array
    token_ids: IntArray
    special: BoolArray
    punctuation: BoolArray

    def statistics(self) -> dict[str, Float32Array | None]:
        return head_statistics(
            self.weights, token_ids=self.token_ids, special=self.special, punctuation=self.punctuation
        )

    def permuted(self, order: list[int]) -> "Text":
        moved = self.weights[:, order][:, :, order]
        return Text(moved, self.token_ids[order], self.special[order], self.punctuation[order])


def plain(*heads: Float32Array) -> Text:
    """A text of different words between [CLS] and [SEP]."""
    tokens = len(heads[0])
    special = np.zeros(tokens, dtype=np.bool_)
    special[[0, -1]] = True
    return Text(np.stack(heads), np.arange(tokens), special, np.zeros(tokens, dtype=np.bool_))


def of(text: Text, name: str) -> list[float]:
    values = text.statistics()[name]
    assert values is not None
    assert values.dtype == np.float32
    return [float(value) for value in values]


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


@settings(deadline=None, max_examples=200)
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


@pytest.mark.parametrize("tokens", [2, 3, 11])
def test_a_causal_head_that_looks_at_all_it_may_see_has_the_largest_entropy(tokens: int) -> None:
    seen = np.tri(tokens, dtype=np.float32)
    text = plain(seen / seen.sum(axis=1, keepdims=True))
    found = head_statistics(
        text.weights, token_ids=text.token_ids, special=text.special, punctuation=text.punctuation, causal=True
    )
    assert found["entropy"] is not None
    assert found["normalized_entropy"] is not None
    logarithms = [math.log(keys) for keys in range(1, tokens + 1)]
    assert float(found["entropy"][0]) == pytest.approx(sum(logarithms) / tokens, abs=1e-6)
    assert float(found["normalized_entropy"][0]) == pytest.approx(1, abs=1e-6)


@settings(deadline=None)
@given(texts())
def test_none_is_infinite_or_not_a_number(text: Text) -> None:
    for name, values in text.statistics().items():
        if values is not None:
            assert values.shape == (len(text.weights),), name
            assert np.isfinite(values).all(), name


@settings(deadline=None)
@given(texts(), st.randoms(use_true_random=False))
def test_what_knows_no_positions_does_not_change_when_tokens_are_permuted(text: Text, shuffler: Random) -> None:
    order = list(range(len(text.token_ids)))
    shuffler.shuffle(order)
    found, permuted = text.statistics(), text.permuted(order).statistics()
    for name in set(STATISTICS) - {"signed_distance", "distance", "offset_previous", "offset_next"}:
        if found[name] is None:
            assert permuted[name] is None, name
        else:
            assert of(text.permuted(order), name) == pytest.approx(of(text, name), abs=2e-6), name


@settings(deadline=None)
@given(texts())
def test_reversing_a_text_turns_previous_into_next(text: Text) -> None:
    order = list(range(len(text.token_ids)))[::-1]
    turned = text.permuted(order)
    np.testing.assert_allclose(of(turned, "offset_next"), of(text, "offset_previous"), atol=2e-6)
    np.testing.assert_allclose(of(turned, "signed_distance"), np.negative(of(text, "signed_distance")), atol=2e-6)
    np.testing.assert_allclose(of(turned, "distance"), of(text, "distance"), atol=2e-6)


@pytest.mark.parametrize("tokens", [2, 3, 16, 128, 512])
def test_a_uniform_head(tokens: int) -> None:
    text = plain(uniform(tokens))
    expected = {
        "entropy": math.log(tokens),
        "normalized_entropy": 1.0,
        "signed_distance": 0.0,
        "distance": (tokens**2 - 1) / (3 * tokens),
        "offset_previous": (tokens - 1) / tokens**2,
        "offset_self": 1 / tokens,
        "offset_next": (tokens - 1) / tokens**2,
        "special_mass": 2 / tokens,
        "special_to_special": 2 / tokens,
        "punctuation_mass": 0.0,
    }
    for name, value in expected.items():
        assert of(text, name) == pytest.approx([value], rel=2e-6, abs=1e-6), name


def test_an_identity_head() -> None:
    text = plain(np.eye(6, dtype=np.float32))
    exact = {
        "entropy": 0.0,
        "normalized_entropy": 0.0,
        "signed_distance": 0.0,
        "distance": 0.0,
        "offset_previous": 0.0,
        "offset_self": 1.0,
        "offset_next": 0.0,
        "special_to_special": 1.0,
        "other_to_special": 0.0,
    }
    for name, value in exact.items():
        assert of(text, name) == [value], name
        assert math.copysign(1, of(text, name)[0]) == 1, f"{name} is -0"
    assert of(text, "special_mass") == pytest.approx([2 / 6])
    assert of(text, "confidence") == pytest.approx([4 / 6])  # [CLS] and [SEP] look at special keys only


def previous_token_head(tokens: int, beta: float) -> Float32Array:
    """A head built from weights: one-hot positions, and a query projection that is beta times a shift."""
    attention = MultiHeadAttention(hidden_size=tokens, num_heads=1, d_k=tokens, d_v=1)
    positions = torch.eye(tokens)
    query = beta * math.sqrt(tokens) * positions.roll(-1, dims=1)  # row i asks for position i - 1
    query[0] = 0
    projected = ((positions @ query)[None], positions[None], positions[None, :, :1])
    lengths, wanted = torch.tensor([tokens]), torch.tensor(True)
    _, weights = eager_attention(AttentionInputs(*projected, lengths, wanted, num_heads=1, scale=attention.scale))
    assert weights is not None
    found: Float32Array = weights[0, 0].numpy()
    return found


@pytest.mark.parametrize("beta", [0.0, 2.0, 8.0])
@pytest.mark.parametrize("tokens", [2, 9, 64])
def test_a_planted_previous_token_head(tokens: int, beta: float) -> None:
    text = plain(previous_token_head(tokens, beta))
    peak = math.exp(beta) / (math.exp(beta) + tokens - 1)
    rest = (1 - peak) / (tokens - 1)
    assert of(text, "offset_previous") == pytest.approx([(tokens - 1) / tokens * peak], rel=1e-5)
    assert of(text, "offset_self") == pytest.approx([(1 / tokens + (tokens - 1) * rest) / tokens], rel=1e-5)
    peaked = -peak * math.log(peak) - (tokens - 1) * rest * math.log(rest)
    assert of(text, "entropy") == pytest.approx([(math.log(tokens) + (tokens - 1) * peaked) / tokens], rel=1e-5)


def test_heads_that_look_one_way() -> None:
    text = plain(np.eye(5, k=-1, dtype=np.float32) + np.diag(np.eye(5, dtype=np.float32)[0]), looking(1, 5))
    assert of(text, "offset_previous") == pytest.approx([0.8, 0.0])  # the first row has nothing before it
    assert of(text, "offset_next") == pytest.approx([0.0, 0.8])
    assert of(text, "signed_distance") == pytest.approx([0.8, 0.0], abs=1e-7)  # 4 - 1 - 1 - 1 - 1: around the end
    assert of(text, "distance") == pytest.approx([0.8, 1.6])


def test_a_head_at_rest_on_the_separator() -> None:
    resting = np.zeros((5, 5), dtype=np.float32)
    resting[:, -1] = 1
    text = plain(resting)
    for name in ("special_mass", "special_to_special", "other_to_special"):
        assert of(text, name) == [1.0]
    assert of(text, "confidence") == [0.0]


def test_who_looks_at_special_tokens_is_told_apart() -> None:
    weights = np.zeros((4, 4), dtype=np.float32)
    weights[[0, 3], 0] = 1  # special queries at [CLS], the others at themselves
    weights[[1, 2], [1, 2]] = 1
    text = plain(weights)
    assert of(text, "special_mass") == [0.5]
    assert of(text, "special_to_special") == [1.0]
    assert of(text, "other_to_special") == [0.0]


def test_a_head_that_matches_equal_tokens() -> None:
    ids = np.array([0, 7, 8, 7, 9, 7, 0])  # [CLS] and [SEP] share an id here, and do not count
    matches = np.zeros((7, 7), dtype=np.float32)
    for query, keys in {0: [6], 1: [3, 5], 2: [2], 3: [1], 4: [0], 5: [5], 6: [0]}.items():
        matches[query, keys] = 1 / len(keys)
    text = plain(matches)._replace(token_ids=ids)
    assert of(text, "repeated_token") == pytest.approx([2 / 3])  # tokens 1 and 3 look at their like, 5 at itself


def test_no_token_repeats() -> None:
    text = plain(uniform(4))
    assert text.statistics()["repeated_token"] is None
    assert text._replace(token_ids=np.array([1, 5, 6, 1])).statistics()["repeated_token"] is None


def test_one_token_and_special_tokens_only() -> None:
    one = plain(uniform(1)).statistics()
    undefined = {name for name, values in one.items() if values is None}
    assert undefined == {"normalized_entropy", "confidence", "other_to_special", "repeated_token"}
    both = plain(uniform(2)).statistics()
    assert {name for name, values in both.items() if values is None} == {
        "confidence",
        "other_to_special",
        "repeated_token",
    }


def test_no_special_token() -> None:
    found = plain(uniform(4))._replace(special=np.zeros(4, dtype=np.bool_)).statistics()
    assert found["special_to_special"] is None
    np.testing.assert_array_equal(found["special_mass"], [0])
    np.testing.assert_array_equal(found["other_to_special"], [0])


@pytest.mark.parametrize("shape", [(0, 0, 0), (0, 5, 5)])
def test_a_layer_without_heads_has_no_numbers(shape: tuple[int, ...]) -> None:
    text = plain(uniform(5))._replace(weights=np.zeros(shape, dtype=np.float32))
    for name, values in text.statistics().items():
        if name != "repeated_token":
            assert values is not None
            assert values.shape == (0,)


@pytest.mark.parametrize("sharpness", [0.1, 3.0, 60.0])
def test_entropy_as_torch_computes_it(generator: np.random.Generator, sharpness: float) -> None:
    weights = draw_maps(generator, 4, 50, 50, sharpness=sharpness)
    distribution: Any = torch.distributions.Categorical(probs=torch.from_numpy(weights).double())
    expected = distribution.entropy().numpy()
    np.testing.assert_allclose(row_entropy(weights), expected, atol=2e-6)


def test_entropy_of_a_one_hot_row_is_no_negative_zero() -> None:
    entropy = row_entropy(np.ones((1, 1), dtype=np.float32))
    assert [math.copysign(1, value) for value in entropy] == [1]


def test_refuses_rows_that_are_not_whole() -> None:
    text = plain(uniform(5))
    with pytest.raises(ValueError, match="a row's sum is off 1 by 0.4: statistics are defined on whole rows"):
        text._replace(weights=text.weights * np.float32(0.6)).statistics()
    with pytest.raises(ValueError, match="a row's sum is off 1 by nan"):
        text._replace(weights=text.weights * np.float32("nan")).statistics()


def test_takes_rows_of_half_precision(generator: np.random.Generator) -> None:
    weights = draw_maps(generator, 2, 512, 512).astype(np.float16).astype(np.float32)
    assert plain(*weights).statistics()["entropy"] is not None


def test_refuses_shapes_that_differ() -> None:
    text = plain(uniform(5))
    with pytest.raises(ValueError, match=r"weights have shape \(1, 1, 5\), expected \[H, n, n\] with n = 5"):
        text._replace(weights=text.weights[:, :1]).statistics()
    with pytest.raises(ValueError, match="with n = 0 of at least 1"):
        text._replace(token_ids=text.token_ids[:0]).statistics()
    with pytest.raises(ValueError, match=r"masks have shapes \(4,\) and \(5,\), expected \(5,\)"):
        text._replace(special=text.special[:4]).statistics()
