"""What an answer holds for the model's task: vectors, scores of labels, or weights of words. Arrays still arrays."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from model.manifest import Manifest
from model.tasks.settings import ScoreActivation, Task
from service.answers.vectors import make_vectors, span_vectors, token_vectors
from service.batching.jobs import JobResult
from service.errors import InferenceFailed
from service.inference.backend import Float32Array, Int64Array
from service.requests.schemas import EncodeRequest


def task_output(request: EncodeRequest, results: Sequence[JobResult], manifest: Manifest) -> dict[str, Any]:
    """The answer's fields for what the model was run for; with `output` "tokens" the encoder's own token vectors.

    Raises:
        InferenceFailed: a number is not finite.
    """
    if request.output == "tokens":
        return {"embeddings": [_vectors(request, token_vectors(result)) for result in results]}
    return _OUTPUTS[manifest.task](request, results, manifest)


def span_output(
    request: EncodeRequest, results: Sequence[JobResult], spans: Sequence[Sequence[Int64Array]]
) -> dict[str, Any]:
    """The answer's fields where spans are asked for: their vectors, by input.

    Raises:
        InferenceFailed: a number is not finite.
    """
    pairs = zip(results, spans, strict=True)
    return {"embeddings": [_vectors(request, span_vectors(result, tokens)) for result, tokens in pairs]}


def activate(logits: Float32Array, activation: ScoreActivation) -> Float32Array:
    """Logits [..., labels] as scores.

    Raises:
        InferenceFailed: a logit is not finite.
    """
    if not np.isfinite(logits).all():
        raise InferenceFailed()
    if activation == "identity":
        return logits
    wide = logits.astype(np.float64)
    if activation == "sigmoid":
        scores = np.exp(-np.logaddexp(0.0, -wide))  # no overflow on either side
    else:
        exponentials = np.exp(wide - wide.max(axis=-1, keepdims=True))
        scores = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return scores.astype(np.float32)


def _pooled(request: EncodeRequest, results: Sequence[JobResult], manifest: Manifest) -> dict[str, Any]:
    del manifest
    pooled = results[0].output[np.newaxis] if len(results) == 1 else np.stack([result.output for result in results])
    return {"embeddings": _vectors(request, pooled)}


def _scores(request: EncodeRequest, results: Sequence[JobResult], manifest: Manifest) -> dict[str, Any]:
    logits = np.stack([result.output for result in results])
    activation = "identity" if request.raw_scores else manifest.activation
    return {"scores": activate(logits, activation), "labels": list(manifest.labels)}


def _sparse(request: EncodeRequest, results: Sequence[JobResult], manifest: Manifest) -> dict[str, Any]:
    del request, manifest
    words = [result.output for result in results]
    if not all(np.isfinite(row).all() for row in words):
        raise InferenceFailed()
    values = [np.ascontiguousarray(row[:, 1]) for row in words]
    return {
        "sparse": [
            {"indices": row[:, 0].astype(np.int32), "values": weights}
            for row, weights in zip(words, values, strict=True)
        ]
    }


def _token_outputs(request: EncodeRequest, results: Sequence[JobResult], manifest: Manifest) -> dict[str, Any]:
    del manifest
    return {"embeddings": [_vectors(request, result.output) for result in results]}


def _vectors(request: EncodeRequest, vectors: Float32Array) -> Float32Array:
    return make_vectors(vectors, dimensions=request.dimensions, normalize=request.normalize)


_OUTPUTS: Mapping[Task, Callable[[EncodeRequest, Sequence[JobResult], Manifest], dict[str, Any]]] = MappingProxyType(
    {"embedding": _pooled, "classification": _scores, "sparse": _sparse, "multi_vector": _token_outputs}
)
