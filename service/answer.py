"""Results as an answer: vectors cut and normalised, attention selected, arrays still arrays.

It knows the request's choices and the model's results, not HTTP and not JSON.
"""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from service.backend import Float32Array
from service.engine import Engine
from service.errors import InferenceFailed
from service.jobs import JobResult
from service.schemas import EncodeRequest
from service.selection import AttentionSelection
from service.tokenizer import TokenizedInput

SMALLEST_LENGTH = 1e-12  # torch.nn.functional.normalize's eps: a zero vector stays zero


def build_answer(
    request: EncodeRequest,
    tokenized: Sequence[TokenizedInput],
    results: Sequence[JobResult],
    selection: AttentionSelection | None,
    engine: Engine,
) -> dict[str, Any]:
    """An answer, one entry an input.

    Raises:
        InferenceFailed: a vector is not finite.
    """
    answer: dict[str, Any] = {
        "model": engine.manifest.model,
        "embeddings": _embeddings(request, results),
        "usage": {"tokens": sum(len(item.input_ids) for item in tokenized)},
        "items": [{"tokens": len(item.input_ids), "truncated": item.truncated} for item in tokenized],
    }
    if selection is not None:
        answer["attention"] = [
            {
                "tokens": engine.tokenizer.tokens(item),
                "offsets": item.offsets,
                "layers": list(selection.layers),
                "heads": selection.heads_by_layer,
                "weights": _weights(request, result, selection),
            }
            for item, result in zip(tokenized, results, strict=True)
        ]
    return answer


def make_vectors(vectors: Float32Array, *, dimensions: int | None, normalize: bool) -> Float32Array:
    """Vectors [n, D] as [n, dimensions], C-contiguous; normalised last, so that shortened ones have length 1 too.

    Raises:
        InferenceFailed: a vector is not finite; JSON has no number for that.
    """
    vectors = vectors[:, :dimensions]
    squares = np.einsum("nd,nd->n", vectors, vectors)
    if not np.isfinite(squares).all():
        raise InferenceFailed(InferenceFailed.fixed_text)
    if normalize:
        vectors = vectors / np.maximum(np.sqrt(squares), SMALLEST_LENGTH)[:, np.newaxis]
    return np.ascontiguousarray(vectors)


def select_weights(result: JobResult, selection: AttentionSelection) -> list[Float32Array]:
    """[heads, queries, keys] of each layer asked for, C-contiguous."""
    heads = slice(None) if selection.heads is None else list(selection.heads)
    queries = slice(0, 1) if selection.cls_only else slice(None)
    return [np.ascontiguousarray(result.attentions[layer][heads, queries]) for layer in selection.layers]


def as_base64(array: Float32Array) -> str:
    """Little-endian float32, row by row."""
    return base64.b64encode(array.astype("<f4", copy=False).tobytes()).decode("ascii")


def _embeddings(request: EncodeRequest, results: Sequence[JobResult]) -> Float32Array | list[Float32Array] | list[str]:
    """[N, D], or [n, D] of each input for one vector a token; with base64 one string an input."""
    vectors: Float32Array | list[Float32Array]
    if request.output == "pooled":
        pooled = np.stack([result.pooled for result in results])
        vectors = make_vectors(pooled, dimensions=request.dimensions, normalize=request.normalize)
    else:
        vectors = [
            make_vectors(_tokens(result), dimensions=request.dimensions, normalize=request.normalize)
            for result in results
        ]
    return [as_base64(array) for array in vectors] if request.encoding_format == "base64" else vectors


def _tokens(result: JobResult) -> Float32Array:
    if result.last_hidden_state is None:
        raise TypeError("last_hidden_state is missing from a result that asked for it")
    return result.last_hidden_state


def _weights(request: EncodeRequest, result: JobResult, selection: AttentionSelection) -> list[Any]:
    weights = select_weights(result, selection)
    if request.encoding_format == "float":
        return list(weights)
    return [{"dtype": "float32", "shape": list(array.shape), "data": as_base64(array)} for array in weights]
