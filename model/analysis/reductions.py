"""One map for all heads of a layer."""

import numpy as np

from model.analysis.arrays import Float32Array


def mean_over_heads(weights: Float32Array) -> Float32Array:
    """The mean of a layer's heads, [..., H, Q, K] -> [..., Q, K]; rows that sum to 1 still do.

    Raises:
        ValueError: the layer has no heads.
    """
    _require_heads(weights)
    mean: Float32Array = weights.mean(axis=-3, dtype=np.float64).astype(np.float32)
    return mean


def max_over_heads(weights: Float32Array) -> Float32Array:
    """The largest weight that any head gives, [..., H, Q, K] -> [..., Q, K].

    An envelope, not a distribution: rows sum to 1 at least and to H at most.

    Raises:
        ValueError: the layer has no heads.
    """
    _require_heads(weights)
    largest: Float32Array = weights.max(axis=-3)
    return largest


def _require_heads(weights: Float32Array) -> None:
    if weights.ndim < 3 or not weights.shape[-3]:
        raise ValueError(f"weights have shape {weights.shape}: expected [..., H, Q, K] with at least one head")
