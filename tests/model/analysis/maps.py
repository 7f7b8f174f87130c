"""Attention maps with known answers: planted heads, and drawn ones from flat to saturated."""

import numpy as np

from model.analysis.arrays import Float32Array


def draw_maps(generator: np.random.Generator, *shape: int, sharpness: float = 3.0) -> Float32Array:
    """Softmaxes [..., Q, K] of normal scores; a high sharpness gives exact zeros and ones."""
    scores = generator.standard_normal(shape, dtype=np.float32) * np.float32(sharpness)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    maps: Float32Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return maps


def uniform(tokens: int) -> Float32Array:
    """Every query looks at every key alike, [n, n]."""
    return np.full((tokens, tokens), 1 / tokens, dtype=np.float32)
