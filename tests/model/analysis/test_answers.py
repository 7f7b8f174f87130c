"""What an answer holds of maps: which keys, and what viewers of attention read of it."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.analysis.adapters import AdapterError, to_bertviz, to_circuitsvis, to_huggingface
from model.analysis.arrays import Float32Array
from model.analysis.reductions import top_k
from model.analysis.words import exclude_special
from tests.model.analysis.maps import draw_maps


@st.composite
def maps_with_ties(draw: st.DrawFn) -> Float32Array:
    """[H, n, n], H from 1 to 4, half of them rounded so coarsely that many weights of a row are equal."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    heads, tokens = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    weights = draw_maps(generator, heads, tokens, tokens, sharpness=draw(st.sampled_from([0.0, 1.0, 4.0, 200.0])))
    return np.round(weights, 1) if draw(st.booleans()) else weights


@settings(deadline=None)
@given(maps_with_ties(), st.integers(1, 24))
@example(np.array([[-0.0, 1.0, 0.0, -0.0]], dtype=np.float32), 3)  # zeros of either sign are equal
def test_against_a_full_stable_sort_and_torch(weights: Float32Array, k: int) -> None:
    found = top_k(weights, k)
    kept = min(k, weights.shape[-1])
    expected = np.argsort(-weights, axis=-1, kind="stable")[..., :kept]
    np.testing.assert_array_equal(found.indices, expected)
    np.testing.assert_array_equal(found.weights, torch.from_numpy(weights).topk(kept).values.numpy())
    assert [array.dtype.name for array in found] == ["int32", "float32", "float32"]
    total = found.weights.sum(axis=-1, dtype=np.float64) + found.left_out
    np.testing.assert_allclose(total, weights.sum(axis=-1, dtype=np.float64), atol=1e-7)
    assert (found.left_out >= 0).all()
    assert k < weights.shape[-1] or not found.left_out.any()


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


def test_a_map_without_keys() -> None:
    found = top_k(np.zeros((2, 0, 0), dtype=np.float32), 3)
    assert (found.indices.shape, found.weights.shape, found.left_out.shape) == ((2, 0, 0), (2, 0, 0), (2, 0))
    assert top_k(np.zeros((2, 1, 0), dtype=np.float32), 3).left_out.tolist() == [[0.0], [0.0]]


TOKENS = ["[CLS]", "the", "cat", "[SEP]"]


def answer(
    tokens: Sequence[str], maps: Sequence[Float32Array], *, layers: list[int], heads: list[list[int]], packed: str = ""
) -> dict[str, Any]:
    """What a client reads: [H, n, n] of each layer through JSON, or as base64 of the dtype `packed`."""
    item = {
        "tokens": list(tokens),
        "offsets": [[place, place + 1] for place in range(len(tokens))],
        "layers": layers,
        "heads": heads,
        "weights": [as_base64(layer, packed) if packed else np.ascontiguousarray(layer) for layer in maps],
    }
    read: dict[str, Any] = orjson.loads(orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY))
    return read


def whole_answer(tokens: Sequence[str], maps: Sequence[Float32Array], packed: str = "") -> dict[str, Any]:
    """Of every layer and head."""
    heads = [list(range(len(layer))) for layer in maps]
    return answer(tokens, maps, layers=list(range(len(maps))), heads=heads, packed=packed)


def as_base64(array: Float32Array, dtype: str) -> dict[str, Any]:
    """As the service sends arrays with `encoding_format: "base64"`."""
    data = base64.b64encode(array.astype(dtype).tobytes()).decode()
    return {"dtype": dtype, "shape": list(array.shape), "data": data}


@pytest.fixture
def maps(generator: np.random.Generator) -> list[Float32Array]:
    """Three layers of two heads over four tokens."""
    return [draw_maps(generator, 2, 4, 4) for _ in range(3)]


@pytest.fixture
def item(maps: list[Float32Array]) -> dict[str, Any]:
    return whole_answer(TOKENS, maps)


def test_arrays_in_base64(maps: list[Float32Array]) -> None:
    for dtype, tolerance in (("float32", 0), ("float16", 5e-4)):
        found = to_huggingface(whole_answer(TOKENS, maps, packed=dtype))
        assert all(layer.dtype == np.float32 for layer in found)
        np.testing.assert_allclose(np.concatenate(found), np.stack(maps), rtol=0, atol=tolerance)


def test_bertviz_counts_layers_and_heads_as_the_model_does(maps: list[Float32Array]) -> None:
    view = to_bertviz(answer(TOKENS, [maps[2], maps[0]], layers=[4, 1], heads=[[3, 0], [3, 0]]))
    assert view.include_layers == [1, 4]
    assert view.tokens == TOKENS
    assert [layer.shape for layer in view.attention] == [(1, 4, 4, 4)] * 5
    np.testing.assert_array_equal(view.attention[4][0, [3, 0]], maps[2])
    np.testing.assert_array_equal(view.attention[1][0, [3, 0]], maps[0])
    assert not view.attention[4][0, [1, 2]].any()


def test_layers_may_differ_in_heads_or_have_none(generator: np.random.Generator) -> None:
    counts = [1, 0, 2]
    item = whole_answer(TOKENS, [draw_maps(generator, count, 4, 4) for count in counts])
    stacked = np.stack(to_bertviz(item).attention)
    assert stacked.shape == (3, 1, 2, 4, 4)
    assert stacked.any(axis=(1, 3, 4)).sum(axis=1).tolist() == counts
    assert [view.attention_head_names for view in to_circuitsvis(item)] == [["L0H0"], ["L2H0", "L2H1"]]
    assert [layer.shape for layer in to_huggingface(item)] == [(1, count, 4, 4) for count in counts]
    with pytest.raises(AdapterError, match="no layer of the answer has heads"):
        to_bertviz(whole_answer(TOKENS, [np.zeros((0, 4, 4), dtype=np.float32)]))


def test_circuitsvis_names_heads_and_shows_what_is_right_of_the_diagonal(maps: list[Float32Array]) -> None:
    views = to_circuitsvis(answer(TOKENS, [maps[2], maps[0]], layers=[4, 1], heads=[[3, 0], [3, 0]]))
    assert [view.attention_head_names for view in views] == [["L4H3", "L4H0"], ["L1H3", "L1H0"]]
    assert [view.mask_upper_tri for view in views] == [False, False]
    np.testing.assert_array_equal(views[0].attention, maps[2])
    assert views[0].tokens == TOKENS


def test_what_is_left_without_special_tokens_can_be_shown_but_is_no_softmax(maps: list[Float32Array]) -> None:
    special = np.array([True, False, False, True])
    left = [exclude_special(layer, special) for layer in maps]
    item = whole_answer(TOKENS[1:3], left)
    np.testing.assert_array_equal(to_circuitsvis(item)[0].attention, left[0])
    np.testing.assert_array_equal(to_bertviz(item).attention[0][0], left[0])
    nothing = whole_answer([], [layer[:, :0, :0] for layer in maps])
    assert to_circuitsvis(nothing)[0].attention.shape == (2, 0, 0)
    with pytest.raises(AdapterError, match="layer 0 has rows that do not sum to 1: ask for weights, special tokens"):
        to_huggingface(item)


def test_words_are_shown_in_the_place_of_tokens_but_are_no_attentions(item: dict[str, Any]) -> None:
    of_words = {**item, "words": item["tokens"]}
    del of_words["tokens"]
    assert to_bertviz(of_words).tokens == to_circuitsvis(of_words)[0].tokens == TOKENS
    with pytest.raises(AdapterError, match='maps are of words: ask for level "token"'):
        to_huggingface(of_words)


def test_huggingface_refuses_a_part_of_the_model(maps: list[Float32Array]) -> None:
    whole = r"layers are \[2\]: `attentions` holds every layer in order, ask for layers \"all"
    with pytest.raises(AdapterError, match=whole):
        to_huggingface(answer(TOKENS, maps[2:], layers=[2], heads=[[0, 1]]))
    whole = r"layer 0 has heads \[1, 0\]: `attentions` holds every head, ask for heads \"all"
    with pytest.raises(AdapterError, match=whole):
        to_huggingface(answer(TOKENS, maps[:1], layers=[0], heads=[[1, 0]]))


REDUCED = 'the answer\'s maps are reduced: ask with reduce "none"'


@pytest.mark.parametrize("adapt", [to_bertviz, to_circuitsvis, to_huggingface])
def test_refuses_what_has_no_form(adapt: Any, item: dict[str, Any]) -> None:
    changes: Any = (
        ({"indices": []}, "the answer holds the top k keys of each query: ask without top_k"),
        ({"heads": None}, REDUCED),
        ({"layers": None}, REDUCED),
        ({"reduce": "rollout"}, REDUCED),
        ({"tokens": TOKENS[:3]}, "layer 0: maps have 4 queries and 4 keys for 3 tokens: ask for queries"),
        ({"weights": np.ones((3, 2, 1, 4))}, 'maps have 1 queries and 4 keys for 4 tokens: ask for queries "all"'),
        ({"weights": np.ones((3, 4, 4))}, r"layer 0: weights have shape \(4, 4\) for 2 heads, they are reduced"),
        ({"heads": [[0]] * 3}, r"layer 0: weights have shape \(2, 4, 4\) for 1 heads, they are reduced"),
    )
    for change, message in changes:
        with pytest.raises(AdapterError, match=message):
            adapt({**item, **change})
    del item["weights"]
    with pytest.raises(AdapterError, match="the answer holds no weights: ask for the form that does"):
        adapt(item)
