"""Less than whole maps: the mean or maximum of a layer's heads, all layers as one (rollout), the k largest keys.

Rollout (Abnar & Zuidema 2020, section 3) follows attention through all layers to the input tokens:

    A~_l = (mean over heads of A_l + I) / row sums      the residual stream is the identity's half
    R_l  = A~_l R_{l-1}, R_0 = I                        row i: where what stands at token i came from

It knows weights only: neither values nor feed-forward layers. A layer without heads moves nothing between tokens, its
A~ is I and it passes through. Heads as points in a plane are classical multidimensional scaling (Torgerson 1952).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.analysis.arrays import Float32Array, Float64Array, Int32Array


def mean_over_heads(weights: Float32Array) -> Float32Array:
    """The mean of a layer's heads, at least one, [..., H, Q, K] -> [..., Q, K]; rows that sum to 1 still do."""
    mean: Float32Array = weights.mean(axis=-3, dtype=np.float64).astype(np.float32)
    return mean


def max_over_heads(weights: Float32Array) -> Float32Array:
    """The largest weight that any head of a layer gives, [..., H, Q, K] -> [..., Q, K].

    An envelope, not a distribution: rows sum to 1 at least and to H at most.
    """
    largest: Float32Array = weights.max(axis=-3)
    return largest


def rollout(attentions: Sequence[Float32Array], start: Float32Array | Float64Array | None = None) -> Float32Array:
    """R_L of one text, or rows of it: `start R_L`, [Q, n].

    Args:
        attentions: each layer's whole weights [H_l, n, n], every layer, first layer first; a layer with H_l = 0 may
            have any n.
        start: [Q, n], the rows wanted, as weights over the last layer's tokens: one-hot rows for single tokens, or a
            pooling's shares. None wants all n tokens. A row costs L n^2 operations, all of them L n^3.
    """
    telling = [weights for weights in attentions if len(weights)] or attentions  # no layer has heads: all shapes count
    rows = np.eye(max(weights.shape[-1] for weights in telling)) if start is None else start.astype(np.float64)
    for weights in reversed(attentions):
        if len(weights):
            rows = _through(weights, rows)
    return rows.astype(np.float32)


def saliency(attentions: Sequence[Float32Array], shares: Float64Array) -> Float32Array:
    """How much of the pooled vector each input token accounts for, by rollout: `shares R_L`, [n], sums to 1.

    `shares` [n] of the pooled vector are those of `model.analysis.contributions.token_shares`.
    """
    row: Float32Array = rollout(attentions, shares[np.newaxis])[0]
    return row


def _through(weights: Float32Array, rows: Float64Array) -> Float64Array:
    """`rows A~_l`, [Q, n], without building A~_l."""
    mean: Float64Array = weights.mean(axis=0, dtype=np.float64)
    scaled: Float64Array = rows / (mean.sum(axis=-1) + 1)  # the row sums of mean + I divide rows of A~, so columns here
    return scaled @ mean + scaled


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


def _ranks(weights: Float32Array) -> NDArray[np.uint64]:
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


def classical_scaling(distances: Float64Array) -> tuple[Float64Array, float]:
    """A plane map of things whose distances from each other are known, [N, N] -> [N, 2], and how exact it is.

    It is centred, each axis with its largest value above 0 so that equal distances give equal maps. Exactness is
    Kruskal's stress-1: root of the squared errors of the map's distances over the squared distances.
    """
    size = len(distances)
    centring = np.eye(size) - 1 / max(size, 1)
    products = -0.5 * centring @ distances**2 @ centring
    values, vectors = np.linalg.eigh((products + products.T) / 2)
    largest = np.argsort(values)[::-1][:2]
    points = np.zeros((size, 2))
    points[:, : len(largest)] = vectors[:, largest] * np.sqrt(np.maximum(values[largest], 0.0))
    signs = np.sign(points[np.abs(points).argmax(axis=0), np.arange(2)]) if size else np.ones(2)
    points *= np.where(signs == 0, 1.0, signs)
    return points, _stress(distances, points)


def _stress(distances: Float64Array, points: Float64Array) -> float:
    found = np.linalg.norm(points[:, np.newaxis] - points, axis=-1)
    total = float((distances**2).sum())
    return float(np.sqrt(((found - distances) ** 2).sum() / total)) if total else 0.0
