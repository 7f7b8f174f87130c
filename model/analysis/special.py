"""Weights without the tokens that the tokenizer added."""

import numpy as np

from model.analysis.arrays import BoolArray, Float32Array


def exclude_special(
    weights: Float32Array, special: BoolArray, *, queries: BoolArray | None = None, renormalise: bool = False
) -> Float32Array:
    """Drops the special keys and queries.

    Without `renormalise` a row's sum is the mass it kept, so that what special tokens took stays visible. With it each
    row is divided by that sum and sums to 1 again; a row that kept nothing at all stays 0.

    Args:
        weights: [..., Q, K].
        special: [K], which keys are special.
        queries: [Q], which rows are dropped; None where the rows are the same tokens as the keys. A caller who asked
            for one special token's row keeps it by giving False.
        renormalise: whether rows sum to 1 again.

    Returns:
        [..., Q kept, K kept], C-contiguous; a text of special tokens only has neither rows nor columns left.

    Raises:
        ValueError: a mask does not fit its axis.
    """
    queries = special if queries is None else queries
    if special.shape != weights.shape[-1:] or queries.shape != weights.shape[-2:-1]:
        raise ValueError(
            f"masks of {queries.shape} queries and {special.shape} keys do not fit weights of shape {weights.shape}"
        )
    kept = np.ascontiguousarray(weights[..., ~queries, :][..., ~special])
    return _renormalised(kept) if renormalise else kept


def _renormalised(weights: Float32Array) -> Float32Array:
    mass = weights.sum(axis=-1, dtype=np.float64, keepdims=True)
    return (weights / np.where(mass > 0, mass, 1.0)).astype(np.float32)
