"""The keys that each query looks at most, and how much it looks elsewhere."""

from typing import NamedTuple

import numpy as np

from model.analysis.arrays import Float32Array, Int32Array

_INDEX_BITS = np.uint64(32)


class TopK(NamedTuple):
    """The k largest weights of every row; k is at most the number of keys.

    Attributes:
        indices: [..., Q, k], which keys, largest weight first, the lower index first where weights are equal.
        weights: [..., Q, k], their weights.
        left_out: [..., Q], the sum of the weights not returned; exactly 0 where all were.
    """

    indices: Int32Array
    weights: Float32Array
    left_out: Float32Array


def top_k(weights: Float32Array, k: int) -> TopK:
    """The k largest keys of each query.

    Args:
        weights: [..., Q, K], none negative.
        k: at least 1; more than K returns all of them.

    Raises:
        ValueError: k is below 1.
    """
    if k < 1:
        raise ValueError(f"k is {k}: expected at least 1")
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
