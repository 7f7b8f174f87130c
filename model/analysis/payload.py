"""How large an attention answer is, known from its shape before anything runs; and the k largest keys of each query.

Sizes are exact for binary numbers and base64. For JSON they are an upper bound, since its numbers differ in length:
weights after a softmax come to about 13 bytes each, the bound counts 16. Tokens, offsets and field names are left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from model.analysis.arrays import Float32Array, Int32Array

Encoding = Literal["json", "base64_float32", "base64_float16", "float32", "float16"]

# The longest float32 in [0, 1] that orjson writes has 15 characters: nine digits, and no exponent from 1e-6 up
# ("0.0000123456789"). A comma follows.
_JSON_FLOAT_BYTES = 16
_JSON_ROW_BYTES = 8  # brackets and commas of a row, and of the map and the tensor if it is their only row


@dataclass(frozen=True, kw_only=True, slots=True)
class MapShape:
    """One tensor of an answer: the maps of one text and one layer."""

    maps: int  # heads; 1 if they are reduced to one map
    queries: int  # rows of each map: tokens, words, what is left of them, or 1
    keys: int  # columns of each map
    top_k: int | None = None  # keys of each row that are sent, with indices and the mass left out; None for whole rows


def maps_bytes(shapes: Iterable[MapShape], encoding: Encoding) -> int:
    """Bytes of an answer's maps; an upper bound where `encoding` is "json", else exact."""
    return sum(_tensor_bytes(shape, encoding) for shape in shapes)


def _tensor_bytes(shape: MapShape, encoding: Encoding) -> int:
    rows, is_json = shape.maps * shape.queries, encoding == "json"
    weight, index = 4 if encoding.endswith("float32") else 2, 4  # the second int32
    if is_json:
        weight, index = _JSON_FLOAT_BYTES, len(str(shape.keys - 1)) + 1

    def array(columns: int, size: int) -> int:
        packed = rows * (columns * size + (_JSON_ROW_BYTES if is_json else 0))
        return -(-packed // 3) * 4 if encoding.startswith("base64") else packed

    if shape.top_k is None:
        return array(shape.keys, weight)
    kept = min(shape.top_k, shape.keys)
    return array(kept, weight) + array(kept, index) + array(1, weight)


_INDEX_BITS = np.uint64(32)


class TopK(NamedTuple):
    """The k largest weights of every row; k is at most the number of keys."""

    indices: Int32Array  # [..., Q, k], which keys, largest weight first, the lower index first where weights are equal
    weights: Float32Array  # [..., Q, k], their weights
    left_out: Float32Array  # [..., Q], the sum of the weights not returned; exactly 0 where all were


def top_k(weights: Float32Array, k: int) -> TopK:
    """The k largest keys of each query, of weights [..., Q, K], none negative; a k above K returns all of them."""
    num_keys = weights.shape[-1]
    k = min(k, num_keys)
    ranks = _ranks(weights)
    if k < num_keys:
        ranks = np.partition(ranks, num_keys - k, axis=-1)[..., num_keys - k :]
    ranks = np.sort(ranks, axis=-1)[..., ::-1]
    indices = (num_keys - 1 - (ranks & np.uint64(0xFFFFFFFF)).astype(np.int64)).astype(np.int32)
    largest = np.take_along_axis(weights, indices, axis=-1)
    return TopK(indices, largest, _left_out(weights, largest))


def _ranks(weights: Float32Array) -> np.typing.NDArray[np.uint64]:
    """Integers that sort as the weights do, no two of a row equal: the weight's bits, then the index downwards.

    The bits of floats that are not negative sort as the floats do; `abs` makes -0.0 one of them.
    """
    downwards = np.arange(weights.shape[-1], dtype=np.uint64)[::-1]
    bits = np.abs(weights, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return (bits << _INDEX_BITS) | downwards


def _left_out(weights: Float32Array, largest: Float32Array) -> Float32Array:
    if largest.shape[-1] == weights.shape[-1]:
        return np.zeros(weights.shape[:-1], dtype=np.float32)
    rest = weights.sum(axis=-1, dtype=np.float64) - largest.sum(axis=-1, dtype=np.float64)
    left_out: Float32Array = np.maximum(rest, 0.0).astype(np.float32)  # below 0 by rounding at most
    return left_out
