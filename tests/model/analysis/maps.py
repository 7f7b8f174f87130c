"""Attention maps with known answers: planted heads, and drawn ones from flat to saturated."""

import numpy as np
from hypothesis import strategies as st

from model.analysis.arrays import Float32Array


def draw_maps(generator: np.random.Generator, *shape: int, sharpness: float = 3.0) -> Float32Array:
    """Softmaxes [..., Q, K] of normal scores; a high sharpness gives exact zeros and ones."""
    scores = generator.standard_normal(shape, dtype=np.float32) * np.float32(sharpness)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    maps: Float32Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return maps


@st.composite
def drawn_maps(draw: st.DrawFn, max_tokens: int = 12) -> Float32Array:
    """[H, n, n], H from 1 to 4, n from 1 up."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    heads, tokens = draw(st.integers(1, 4)), draw(st.integers(1, max_tokens))
    return draw_maps(generator, heads, tokens, tokens, sharpness=draw(st.sampled_from([0.0, 1.0, 4.0, 200.0])))


def uniform(tokens: int) -> Float32Array:
    """Every query looks at every key alike, [n, n]."""
    return np.full((tokens, tokens), 1 / tokens, dtype=np.float32)
