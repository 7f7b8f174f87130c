"""Patterns of a head that take more than a text's weights to see, or that only a report over many texts needs.

Notation as in `model.analysis.statistics`: a_ij weight of query i on key j, n tokens, S the special ones.

    sink          mean_i of a_i,0: what the first token takes
    offset_rate   share of the rows with a key `offset` places on whose largest weight stands there (Voita et al. 2019
                  call a head positional from 0.9)
    rare_token    share of the queries not in S whose largest weight on a key not in S is on the rarest such token of
                  the text (Voita et al. 2019); only of texts in which one token is rarer than every other, and of
                  5 tokens not in S at least, so that chance is low
    variability   sum_x sum_ij |a_ij(x) - mean_x a_ij| / (2 sum_x sum_ij a_ij(x)) over the first N positions of texts x
                  (Vig & Belinkov 2019): 0 for a head that does not look at content
"""

import numpy as np

from model.analysis.arrays import BoolArray, Float32Array, Float64Array, IntArray

FEWEST_ORDINARY = 5


def sink(weights: Float32Array) -> Float64Array:
    """Mean over queries of the weight on the first key, [H, n, n] -> [H]."""
    mean: Float64Array = weights[..., 0].mean(axis=-1, dtype=np.float64)
    return mean


def offset_rate(weights: Float32Array, offset: int) -> Float64Array | None:
    """Share of rows whose largest weight is `offset` places on, [H, n, n] -> [H]; None where no row has such a key.

    Of equal weights the first counts, as in `numpy.argmax`: uniform rows point to key 0.
    """
    rows = np.arange(weights.shape[-1])
    rows = rows[(rows + offset >= 0) & (rows + offset < len(rows))]
    if not len(rows):
        return None
    return offset_rate_of(weights.argmax(axis=-1), offset, rows)


def offset_rate_of(largest: IntArray, offset: int, rows: IntArray) -> Float64Array:
    """The same from where each row's largest weight stands, [H, n] -> [H]."""
    rate: Float64Array = (largest[:, rows] == rows + offset).mean(axis=-1)
    return rate


def rare_token(weights: Float32Array, counts: IntArray, special: BoolArray) -> Float64Array | None:
    """Share of ordinary queries that look most at the text's rarest ordinary token, [H, n, n] -> [H].

    Args:
        weights: [H, n, n].
        counts: [n], how often each token's id occurs in the corpus.
        special: [n].

    Returns:
        [H]; None where the text has no single rarest token, or is too short.
    """
    places = np.flatnonzero(~special)
    if len(places) < FEWEST_ORDINARY or np.count_nonzero(counts[places] == counts[places].min()) > 1:
        return None
    rarest = places[counts[places].argmin()]
    largest = (weights * (~special).astype(np.float32)).argmax(axis=-1)[:, places]  # [H, ordinary queries]
    rate: Float64Array = (largest == rarest).mean(axis=-1)
    return rate


def variability(first_positions: Float32Array) -> Float64Array:
    """How much each head's weights between the first N positions differ from text to text, a text a value.

    Args:
        first_positions: [X, H, N, N], the top left corner of each text's map; every text has N tokens at least.

    Returns:
        [X, H], each text's share; the head's variability is the mean over X, 0 to 1.
    """
    mean = first_positions.mean(axis=0, dtype=np.float64)  # [H, N, N]
    difference = np.abs(first_positions - mean).sum(axis=(-2, -1))
    mass: Float64Array = first_positions.sum(axis=(-2, -1), dtype=np.float64).mean(axis=0)  # [H]
    shares: Float64Array = difference / (2 * mass)
    return shares
