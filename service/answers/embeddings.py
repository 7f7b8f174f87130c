"""Results as an answer: vectors cut and normalised, attention beside them, arrays still arrays.

It knows the request's choices and the model's results, not HTTP and not JSON.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from service.answers.attention import build_attention
from service.batching.jobs import JobResult
from service.errors import InferenceFailed
from service.inference.backend import Float32Array
from service.requests.plan import EncodePlan
from service.requests.schemas import EncodeRequest
from service.requests.selection import AttentionPlan
from service.runner import Runner
from service.tokenization.tokenizer import TokenizedInput

SMALLEST_LENGTH = 1e-12  # torch.nn.functional.normalize's eps: a zero vector stays zero


def build_answer(
    plan: EncodePlan,
    tokenized: Sequence[TokenizedInput],
    results: Sequence[JobResult],
    attention: AttentionPlan | None,
    runner: Runner,
) -> dict[str, Any]:
    """An answer, one entry an input, arrays still arrays.

    Raises:
        InferenceFailed: a vector is not finite.
    """
    answer: dict[str, Any] = {
        "model": runner.manifest.model,
        "embeddings": _embeddings(plan.request, results),
        "usage": {"tokens": sum(len(item.input_ids) for item in tokenized)},
        "items": [describe_item(item) for item in tokenized],
    }
    if attention is not None:
        answer["attention"] = build_attention(attention, tokenized, results, runner.tokenizer)
    return answer if plan.prompt is None else answer | plan.prompt.document()


def describe_item(item: TokenizedInput) -> dict[str, Any]:
    """What became of one input: its tokens, and how many of a longer text were left out."""
    length = len(item.input_ids)
    if not item.truncated:
        return {"tokens": length, "truncated": False}
    return {"tokens": length, "truncated": True, "tokens_cut": item.full_length - length}


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


def _embeddings(request: EncodeRequest, results: Sequence[JobResult]) -> Float32Array | list[Float32Array]:
    """[N, D], or [n, D] of each input for one vector a token."""
    if request.output == "pooled":
        pooled = results[0].pooled[np.newaxis] if len(results) == 1 else np.stack([result.pooled for result in results])
        return make_vectors(pooled, dimensions=request.dimensions, normalize=request.normalize)
    return [
        make_vectors(token_vectors(result), dimensions=request.dimensions, normalize=request.normalize)
        for result in results
    ]
