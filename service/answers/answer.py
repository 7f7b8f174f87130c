"""Results as an answer: what the task gives, attention beside it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from model.artifact import Manifest
from service.answers.attention import build_attention, build_contributions
from service.answers.entities import LabelledText
from service.answers.scores import activate, counted
from service.answers.vectors import (
    in_turns,
    join_windows,
    make_vectors,
    pool_tokens,
    quantize,
    span_vectors,
    token_vectors,
)
from service.batching.jobs import JobResult
from service.errors import InferenceFailed
from service.inference.backend import Float32Array, Int64Array, TokenParts
from service.requests.attention import Axes
from service.requests.plan import EncodePlan, is_quantized
from service.requests.spans import SpanTokens
from service.runner import Runner
from service.tokenization.rows import TokenizedInput, offsets_behind, stitch


def build_answer(
    plan: EncodePlan,
    tokenized: Sequence[TokenizedInput],
    results: Sequence[JobResult],
    axes: Sequence[Axes],
    runner: Runner,
    *,
    span_tokens: Sequence[SpanTokens] | None,
    parts: Sequence[TokenParts] | None,
) -> dict[str, Any]:
    """An answer, one entry an input, arrays still arrays.

    `results` are of each input, or of all windows of all inputs; `parts` what each token gives to its input's vector.

    Raises:
        InferenceFailed: a vector is not finite.
    """
    if plan.request.long_texts is not None:
        results = join_windows(tokenized, results, plan.request.long_texts)
    if plan.answers_counted:
        kept = [counted(item.input_ids, plan.request.role, runner.manifest) for item in tokenized]
        pairs = zip(results, kept, strict=True)
        results = [result if mask.all() else replace(result, output=result.output[mask]) for result, mask in pairs]
    answer: dict[str, Any] = {
        "model": runner.name,
        **_main_output(plan, tokenized, results, runner, span_tokens),
        "usage": {"tokens": sum(len(item.input_ids) for item in tokenized)},
        "items": [describe_item(item) for item in tokenized],
    }
    rows = None
    if plan.request.pool_factor is not None:
        pooled = [pool_tokens(vectors, plan.request.pool_factor) for vectors in answer["embeddings"]]
        answer["embeddings"], rows = [vectors for vectors, _ in pooled], [rows for _, rows in pooled]
    if plan.request.return_tokens:
        answer["tokens"] = list(_tokens_of_vectors(plan, tokenized, rows, runner.manifest))
    if is_quantized(name := plan.request.encoding_format):
        vectors, manifest = answer["embeddings"], runner.manifest
        is_one = isinstance(vectors, np.ndarray)
        answer["embeddings"] = (
            quantize(vectors, name, manifest) if is_one else [quantize(rows, name, manifest) for rows in vectors]
        )
    if plan.selection is not None:
        answer["attention"] = build_attention(plan.selection, axes, tokenized, results, runner.tokenizer)
    if parts is not None:
        answer["attention"] = build_contributions(plan, tokenized, parts, runner.tokenizer)
    return answer | plan.prompt.document()


def _main_output(
    plan: EncodePlan,
    tokenized: Sequence[TokenizedInput],
    results: Sequence[JobResult],
    runner: Runner,
    span_tokens: Sequence[SpanTokens] | None,
) -> dict[str, Any]:
    if span_tokens is not None:
        pairs = zip(results, span_tokens, strict=True)
        return {"embeddings": [_vectors(plan, span_vectors(result, tokens)) for result, tokens in pairs]}
    if plan.request.outputs is not None:
        return _chosen_outputs(plan, tokenized, results, runner)
    output = task_output(plan, results)
    if (options := plan.request.entities) is None:
        return output
    found = []
    for item, scores in in_turns(zip(tokenized, output["scores"], strict=True)):
        ids = stitch(item, [window.input_ids for window in item.windows]) if item.windows else item.input_ids
        labelled = LabelledText(item, ids, scores, runner.manifest.labels, runner.tokenizer)
        found.append(labelled.entities(options))
    return {"entities": found}


def _chosen_outputs(
    plan: EncodePlan, tokenized: Sequence[TokenizedInput], results: Sequence[JobResult], runner: Runner
) -> dict[str, Any]:
    """The outputs that are asked for, of an embedder with several."""
    wanted, layers = plan.request.outputs or (), runner.token_outputs
    output = task_output(plan, results) if "dense" in wanted else {}
    if layers is None or {*wanted} == {"dense"}:
        return output
    hidden = [token_vectors(result) for result in results]
    if not all(np.isfinite(states).all() for states in in_turns(hidden)):
        raise InferenceFailed()
    if "sparse" in wanted:
        pairs = in_turns(zip(hidden, tokenized, strict=True))
        output["sparse"] = [layers.words(states, item.input_ids) for states, item in pairs]
    if "multi_vector" in wanted:
        whole = partial(make_vectors, dimensions=None, normalize=plan.normalize)
        output["multi_vector"] = [whole(layers.vectors(states)) for states in in_turns(hidden)]
    return output


def _tokens_of_vectors(
    plan: EncodePlan, tokenized: Sequence[TokenizedInput], rows: Sequence[Int64Array] | None, manifest: Manifest
) -> Iterator[dict[str, Any]]:
    """Which tokens each input's vectors are of, and where in the text as it was sent."""
    for index, item in enumerate(tokenized):
        role = plan.request.role if plan.answers_counted else None
        kept = counted(item.input_ids, role, manifest)
        if plan.request.outputs is not None:
            kept[0] = False
        offsets = None
        if item.offsets is not None:
            offsets = np.array(offsets_behind(item, len(plan.prompt.text)), dtype=np.int32)[kept]
        entry = {"input_ids": item.input_ids[kept].astype(np.int32), "offsets": offsets}
        yield entry if rows is None else entry | {"rows": rows[index].astype(np.int32)}


def describe_item(item: TokenizedInput) -> dict[str, Any]:
    """What became of one input: its tokens, and how many of a longer text were left out."""
    described = {"tokens": len(item.input_ids), "truncated": item.truncated}
    if item.truncated:
        described["tokens_cut"] = item.full_length - len(item.input_ids)
    if item.windows:
        described["windows"] = len(item.windows)
    return described


def task_output(plan: EncodePlan, results: Sequence[JobResult]) -> dict[str, Any]:
    """The answer's fields for what the model was run for; with `output` "tokens" the encoder's own token vectors."""
    request, manifest = plan.request, plan.manifest
    if request.output == "tokens":
        return {"embeddings": [_vectors(plan, token_vectors(result)) for result in results]}
    outputs = [result.output for result in results]
    activation = "identity" if request.raw_scores else manifest.activation
    match manifest.task:
        case "embedding":
            return {"embeddings": _vectors(plan, np.array(outputs))}
        case "multi_vector":
            return {"embeddings": [_vectors(plan, vectors) for vectors in outputs]}
        case "sparse":
            if not all(np.isfinite(row).all() for row in outputs):
                raise InferenceFailed()
            pairs = [(row[:, 0].astype(np.int32), np.ascontiguousarray(row[:, 1])) for row in outputs]
            return {"sparse": [{"indices": indices, "values": weights} for indices, weights in pairs]}
        case "classification":
            return {"scores": activate(np.array(outputs), activation), "labels": list(manifest.labels)}
        case "token_classification":
            return {"scores": [activate(logits, activation) for logits in outputs], "labels": list(manifest.labels)}


def _vectors(plan: EncodePlan, vectors: Float32Array) -> Float32Array:
    return make_vectors(vectors, dimensions=plan.request.dimensions, normalize=plan.normalize)
