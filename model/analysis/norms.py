"""Attention weighted by what it moves (Kobayashi et al. 2020, "Attention is not only a weight").

A head adds sum_j alpha_ij f(x_j) to token i, with f(x) = (x W_V + b_V) W_O of that head, a vector [D]. The weight alone
says how much of x_j is taken, not how long the vector is that is taken: heads with nothing to do rest on [SEP], whose
f is short. The norm-weighted view is ||alpha_ij f(x_j)|| = alpha_ij ||f(x_j)||, weights being positive.

Three things to know. f contains the head's value bias: an export that moves b_V behind the output projection leaves the
output as it was but changes f, so the norms must be taken with b_V in place. Output bias, residual and LayerNorm are
not part of it. And norms of heads do not add up: ||sum over heads|| needs the vectors.
"""

import numpy as np

from model.analysis.arrays import Float32Array


def norm_weighted(weights: Float32Array, value_norms: Float32Array) -> Float32Array:
    """||alpha_ij f_h(x_j)||, each column of a head's map scaled by the length of what it moves.

    Args:
        weights: [..., H, Q, K]; any queries of the text, all its keys.
        value_norms: [..., H, K], ||f_h(x_j)|| of every token; it does not depend on the query.

    Returns:
        [..., H, Q, K]; rows have the unit of the hidden state and do not sum to 1.

    Raises:
        ValueError: the shapes do not belong together.
    """
    if value_norms.shape != (*weights.shape[:-2], weights.shape[-1]):
        raise ValueError(f"value_norms have shape {value_norms.shape}, expected [..., H, K] of weights {weights.shape}")
    return weights * value_norms[..., np.newaxis, :]


def value_norms(values: Float32Array, output: Float32Array) -> Float32Array:
    """||f_h(x_j)|| from a layer's values; the definition that a graph's own norms are held against.

    Args:
        values: [H, n, V], x W_V + b_V of each head.
        output: [H, V, D], each head's rows of W_O.

    Returns:
        [H, n].
    """
    norms: Float32Array = np.linalg.norm(values.astype(np.float64) @ output, axis=-1).astype(np.float32)
    return norms
