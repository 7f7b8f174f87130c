import base64

import numpy as np
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from model.analysis.arrays import Float32Array
from model.analysis.payload import Encoding, MapShape, maps_bytes
from model.analysis.top_k import top_k
from tests.model.analysis.maps import draw_maps

SHAPES = st.builds(MapShape, maps=st.integers(1, 4), queries=st.integers(1, 6), keys=st.integers(0, 40))
BINARY: list[Encoding] = ["base64_float32", "base64_float16", "float32", "float16"]


def as_json(*arrays: np.typing.NDArray[np.generic]) -> int:
    return sum(len(orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)) for array in arrays)


def as_binary(array: np.typing.NDArray[np.generic], encoding: Encoding) -> int:
    if array.dtype == np.float32 and encoding.endswith("float16"):
        array = array.astype(np.float16)
    data = array.tobytes()
    return len(base64.b64encode(data)) if encoding.startswith("base64") else len(data)


def maps_of(shape: MapShape, seed: int = 0, sharpness: float = 3.0) -> Float32Array:
    generator = np.random.default_rng(seed)
    if not shape.keys:
        return np.zeros((shape.maps, shape.queries, 0), dtype=np.float32)
    return draw_maps(generator, shape.maps, shape.queries, shape.keys, sharpness=sharpness)


@settings(deadline=None)
@given(SHAPES, st.integers(1, 50), st.sampled_from(BINARY))
def test_binary_sizes_are_exact(shape: MapShape, k: int, encoding: Encoding) -> None:
    weights = maps_of(shape)
    assert maps_bytes([shape], encoding) == as_binary(weights, encoding)
    cut = MapShape(maps=shape.maps, queries=shape.queries, keys=shape.keys, top_k=k)
    assert maps_bytes([cut], encoding) == sum(as_binary(array, encoding) for array in top_k(weights, k))


@settings(deadline=None)
@given(SHAPES, st.integers(1, 50), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 3.0, 12.0, 200.0]))
def test_json_takes_no_more_than_said(shape: MapShape, k: int, seed: int, sharpness: float) -> None:
    weights = maps_of(shape, seed, sharpness)
    assert as_json(weights) <= maps_bytes([shape], "json")
    cut = MapShape(maps=shape.maps, queries=shape.queries, keys=shape.keys, top_k=k)
    assert as_json(*top_k(weights, k)) <= maps_bytes([cut], "json")


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


def test_the_bound_is_not_far_off() -> None:
    shape = MapShape(maps=4, queries=128, keys=128)
    assert maps_bytes([shape], "json") < 1.3 * as_json(maps_of(shape))


def test_layers_add_up() -> None:
    wide, narrow = MapShape(maps=12, queries=8, keys=8), MapShape(maps=3, queries=1, keys=8)
    for encoding in (*BINARY, "json"):
        assert maps_bytes([wide, narrow], encoding) == maps_bytes([wide], encoding) + maps_bytes([narrow], encoding)
    assert maps_bytes([wide, narrow], "float32") == 4 * (12 * 64 + 3 * 8)
    assert maps_bytes([], "json") == 0
