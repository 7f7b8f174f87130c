"""Attention followed through all layers to the input tokens (Abnar & Zuidema 2020, section 3, attention rollout).

    A~_l = (mean over heads of A_l + I) / row sums      the residual stream is the identity's half
    R_l  = A~_l R_{l-1}, R_0 = I                        row i: where what stands at token i came from

It knows weights only: neither values nor feed-forward layers. A layer without heads moves nothing between tokens, its
A~ is I and it passes through.
"""

from collections.abc import Sequence

import numpy as np

from model.analysis.arrays import Float32Array, Float64Array


def rollout(attentions: Sequence[Float32Array], start: Float32Array | Float64Array | None = None) -> Float32Array:
    """R_L of one text, or rows of it.

    Args:
        attentions: each layer's whole weights [H_l, n, n], every layer, first layer first; a layer with H_l = 0 may
            have any n.
        start: [Q, n], the rows wanted, as weights over the last layer's tokens: one-hot rows for single tokens, or a
            pooling's shares. None wants all n tokens. A row costs L n^2 operations, all of them L n^3.

    Returns:
        `start R_L`, [Q, n]; each row sums to what its row of `start` sums to, 1 where there is none.

    Raises:
        ValueError: no layer tells n, a layer is not whole, or shapes differ.
    """
    telling = [weights for weights in attentions if len(weights)] or attentions  # no layer has heads: all shapes count
    num_tokens = max((weights.shape[-1] for weights in telling), default=0)
    rows = np.eye(num_tokens) if start is None else start.astype(np.float64)
    if not num_tokens or rows.ndim != 2 or rows.shape[-1] != num_tokens:
        raise ValueError(
            f"start has shape {rows.shape}, expected [Q, n] with the layers' n = {num_tokens} of at least 1"
        )
    for weights in reversed(attentions):
        if len(weights):
            rows = _through(weights, rows)
    return rows.astype(np.float32)


def saliency(attentions: Sequence[Float32Array], shares: Float64Array) -> Float32Array:
    """How much of the pooled vector each input token accounts for, by rollout: `shares R_L`, [n], sums to 1.

    Args:
        attentions: as in `rollout`.
        shares: [n], each token's share of the pooled vector, as `model.analysis.contributions.token_shares` gives.

    Raises:
        ValueError: as `rollout` does.
    """
    row: Float32Array = rollout(attentions, shares[np.newaxis])[0]
    return row


def _through(weights: Float32Array, rows: Float64Array) -> Float64Array:
    """`rows A~_l`, [Q, n], without building A~_l."""
    num_tokens = rows.shape[-1]
    if weights.shape[1:] != (num_tokens, num_tokens):
        raise ValueError(
            f"a layer has shape {weights.shape}, expected [H, {num_tokens}, {num_tokens}]: rollout needs "
            "every query and key of every layer"
        )
    mean: Float64Array = weights.mean(axis=0, dtype=np.float64)
    scaled: Float64Array = rows / (mean.sum(axis=-1) + 1)  # the row sums of mean + I divide rows of A~, so columns here
    return scaled @ mean + scaled
