"""Vectors as a request wants them: of so many dimensions, and of length 1.

It knows arrays only.
"""

from collections.abc import Sequence

import numpy as np

from service.batching.jobs import JobResult
from service.errors import InferenceFailed
from service.inference.backend import Float32Array, Int64Array

SMALLEST_LENGTH = 1e-12  # torch.nn.functional.normalize's eps: a zero vector stays zero


def make_vectors(vectors: Float32Array, *, dimensions: int | None, normalize: bool) -> Float32Array:
    """Vectors [n, D] as [n, dimensions], C-contiguous; normalised last, so that shortened ones have length 1 too.

    Raises:
        InferenceFailed: a vector is not finite; JSON has no number for that.
    """
    vectors = vectors[:, :dimensions]
    squares = np.vecdot(vectors, vectors)
    if not np.isfinite(squares).all():
        raise InferenceFailed()
    if normalize:
        vectors = vectors / np.maximum(np.sqrt(squares), SMALLEST_LENGTH)[:, np.newaxis]
    return np.ascontiguousarray(vectors)


def token_vectors(result: JobResult) -> Float32Array:
    """One vector a token, [n, D], of a text that was run with `wants_tokens`."""
    if result.last_hidden_state is None:
        raise TypeError("last_hidden_state is missing from a result that asked for it")
    return result.last_hidden_state


def span_vectors(result: JobResult, spans: Sequence[Int64Array]) -> Float32Array:
    """One vector a span, [spans, D]: the mean over its tokens, whose places are given."""
    vectors = token_vectors(result)
    return np.stack([vectors[tokens].mean(axis=0) for tokens in spans])
