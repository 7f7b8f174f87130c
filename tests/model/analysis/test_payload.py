import base64
from dataclasses import replace

import numpy as np
import orjson
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.analysis.arrays import Float32Array
from model.analysis.payload import Encoding, MapShape, maps_bytes, top_k
from tests.model.analysis.maps import draw_maps, drawn_maps

SHAPES = st.builds(MapShape, maps=st.integers(1, 4), queries=st.integers(1, 6), keys=st.integers(0, 40))
BINARY: list[Encoding] = ["base64_float32", "base64_float16", "float32", "float16"]


def as_json(*arrays: np.typing.NDArray[np.generic]) -> int:
    return sum(len(orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)) for array in arrays)


def as_binary(array: np.typing.NDArray[np.generic], encoding: Encoding) -> int:
    if array.dtype == np.float32 and encoding.endswith("float16"):
        array = array.astype(np.float16)
    data = array.tobytes()
    return len(base64.b64encode(data)) if encoding.startswith("base64") else len(data)


def maps_of(shape: MapShape, seed: int, sharpness: float) -> Float32Array:
    generator = np.random.default_rng(seed)
    if not shape.keys:
        return np.zeros((shape.maps, shape.queries, 0), dtype=np.float32)
    return draw_maps(generator, shape.maps, shape.queries, shape.keys, sharpness=sharpness)


@settings(deadline=None)
@given(SHAPES, st.integers(1, 50), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 3.0, 12.0, 200.0]))
def test_binary_sizes_are_exact_and_json_takes_no_more(shape: MapShape, k: int, seed: int, sharpness: float) -> None:
    weights, cut = maps_of(shape, seed, sharpness), replace(shape, top_k=k)
    kept = top_k(weights, k)
    assert as_json(weights) <= maps_bytes([shape], "json")
    assert as_json(*kept) <= maps_bytes([cut], "json")
    for encoding in BINARY:
        assert maps_bytes([shape], encoding) == as_binary(weights, encoding)
        assert maps_bytes([cut], encoding) == sum(as_binary(array, encoding) for array in kept)
        assert maps_bytes([shape, cut], encoding) == maps_bytes([shape], encoding) + maps_bytes([cut], encoding)


def test_the_longest_numbers_that_a_weight_can_be() -> None:
    """Every power of ten has floats that need nine digits; below 1e-6 there are exponents, which are shorter."""
    generator = np.random.default_rng(0)
    longest = 0
    for exponent in range(-45, 0):
        around = (10.0**exponent * (1 + generator.random(20_000))).astype(np.float32)
        longest = max(longest, *map(len, orjson.dumps(around, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")))
    assert longest == 15


def test_json_takes_no_more_than_said_where_every_number_is_long() -> None:
    weights = np.zeros((2, 1, 1000), dtype=np.float32)
    weights[..., 100:] = 0.0000101051055
    assert as_json(weights[0, 0, -1:]) == 15 + len("[]")
    shape = MapShape(maps=2, queries=1, keys=1000, top_k=900)
    cut = top_k(weights, 900)
    assert as_json(*cut) <= maps_bytes([shape], "json") <= 1.02 * as_json(*cut)
    whole = MapShape(maps=2, queries=1, keys=900)
    assert as_json(cut.weights) <= maps_bytes([whole], "json") <= 1.02 * as_json(cut.weights)


@st.composite
def maps_with_ties(draw: st.DrawFn) -> Float32Array:
    """Maps, half of them rounded so coarsely that many weights of a row are equal."""
    weights = draw(drawn_maps(max_tokens=20))
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
