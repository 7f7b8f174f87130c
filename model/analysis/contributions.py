"""The similarity of two texts as a sum over pairs of their tokens.

Pooling writes a text's vector as a sum of one part a token: p = sum_i p_i. A dot product of two such sums is the sum of
all p_i . q_j, so the matrix of those is an exact account of the similarity; for the cosine all are divided by |p| |q|.

    mean    p_i = a_i / n                                       every cell may differ from 0
    max     p_i = a_i in the dimensions of its maximum          (the first of equals), else 0
    cls     p_0 = a_0, the others 0                             one cell holds the whole similarity
    last    p_n-1 = a_n-1, the others 0                         likewise

Cells are what the pooled vectors were made of, not causes: a token's final vector holds what it read from the others.

Attention weighted by what it moves (Kobayashi et al. 2020, "Attention is not only a weight"): a head adds
sum_j alpha_ij f(x_j) to token i, with f(x) = (x W_V + b_V) W_O of that head, a vector [D]. The weight alone says how
much of x_j is taken, not how long that vector is: idle heads attend to [SEP], whose f is short. The norm-weighted view
is ||alpha_ij f(x_j)|| = alpha_ij ||f(x_j)||, weights being positive. f contains the head's value bias, which an export
may move behind the output projection, so norms are taken with b_V in place; output bias, residual and LayerNorm are not
part of f. Norms of heads do not add up: ||sum over heads|| needs the vectors.
"""

from typing import Literal

import numpy as np

from model.analysis.arrays import Float32Array, Float64Array
from model.config import Pooling

Similarity = Literal["cosine", "dot"]


def contributions(
    a: Float32Array, b: Float32Array, *, pooling: Pooling, similarity: Similarity = "cosine"
) -> Float32Array:
    """What each pair of tokens adds to the similarity of two texts, [n, D] and [m, D] -> [n, m].

    `a` and `b` are `last_hidden_state` of the texts' real tokens; their first d columns for embeddings cut to d. The
    sum of all cells, taken in float64, is the similarity within 1e-5.

    Raises:
        ValueError: a cosine is undefined because a pooled vector is 0.
    """
    parts_of_a, parts_of_b = pooled_parts(a, pooling), pooled_parts(b, pooling)
    cells = parts_of_a @ parts_of_b.T
    if similarity == "cosine":
        cells /= _length(parts_of_a) * _length(parts_of_b)
    return cells.astype(np.float32)


def pooled_parts(hidden: Float32Array, pooling: Pooling) -> Float64Array:
    """What each token gives to the pooled vector, [n, D] -> [n, D]; the parts' sum is the pooled vector."""
    return hidden * _selection(hidden, pooling)


def token_shares(hidden: Float32Array, pooling: Pooling) -> Float64Array:
    """Each token's share of the pooled vector, [n, D] -> [n], sums to 1.

    1/n with mean, 1 for the one token with cls and last, the share of the dimensions that it wins with max.
    """
    shares: Float64Array = _selection(hidden, pooling).mean(axis=1)
    return shares


def _selection(hidden: Float32Array, pooling: Pooling) -> Float64Array:
    """How much of each value is pooled, [n, D]; every column sums to 1."""
    selection = np.zeros(hidden.shape)
    if pooling == "mean":
        selection[:] = 1 / len(hidden)
    elif pooling == "max":
        selection[hidden.argmax(axis=0), np.arange(hidden.shape[1])] = 1
    else:
        selection[{"cls": 0, "last": -1}[pooling]] = 1
    return selection


def _length(parts: Float64Array) -> float:
    length = float(np.linalg.norm(parts.sum(axis=0)))
    if not length:
        raise ValueError("a text's pooled vector is 0, its cosine with anything is undefined: ask for the dot product")
    return length


def norm_weighted(weights: Float32Array, value_norms: Float32Array) -> Float32Array:
    """||alpha_ij f_h(x_j)|| of any rows [..., H, Q, K], from ||f_h(x_j)|| [..., H, K]; rows do not sum to 1."""
    return weights * value_norms[..., np.newaxis, :]
