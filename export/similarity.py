"""Cosines and rank correlations, along the last axis of arrays."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from model.analysis.arrays import Float64Array


def row_cosines(a: NDArray[np.floating], b: NDArray[np.floating]) -> Float64Array:
    """Cosine of each row of one [..., D] with the same row of the other, [...] in float64; NaN for a vector of 0."""
    with np.errstate(invalid="ignore"):
        lengths = np.linalg.norm(a.astype(np.float64), axis=-1) * np.linalg.norm(b.astype(np.float64), axis=-1)
        cosines: Float64Array = np.vecdot(a.astype(np.float64), b.astype(np.float64)) / lengths
    return cosines


def pair_cosines(embeddings: NDArray[np.floating]) -> Float64Array:
    """Cosines of pairs, [2N, D] -> [N]: the N left texts come first, then the N right ones."""
    return row_cosines(*np.split(embeddings, 2))


def rank_correlations(a: NDArray[np.floating], b: NDArray[np.floating]) -> Float64Array:
    """Spearman of each row of one [..., n] with the same row of the other, [...]; NaN where a row is constant."""
    ranks = [rankdata(rows, axis=-1) for rows in (a, b)]
    centred = [rows - rows.mean(axis=-1, keepdims=True) for rows in ranks]
    with np.errstate(invalid="ignore"):
        return row_cosines(*centred)
