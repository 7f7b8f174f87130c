"""Results as an answer: what the task gives, attention beside it, arrays still arrays.

It knows the request's choices and the model's results, not HTTP and not JSON.
"""

from collections.abc import Sequence
from typing import Any

from service.answers.attention import build_attention
from service.answers.decomposition import build_contributions
from service.answers.outputs import span_output, task_output
from service.answers.quantize import is_quantized, quantize_all
from service.answers.windows import mean_of_windows
from service.batching.jobs import JobResult
from service.inference.backend import Int64Array
from service.inference.decomposer import TokenParts
from service.requests.plan import EncodePlan
from service.requests.selection import AttentionPlan
from service.runner import Runner
from service.tokenization.tokenized import TokenizedInput


def build_answer(
    plan: EncodePlan,
    tokenized: Sequence[TokenizedInput],
    results: Sequence[JobResult],
    attention: AttentionPlan | None,
    runner: Runner,
    *,
    span_tokens: Sequence[Sequence[Int64Array]] | None = None,
    parts: Sequence[TokenParts] | None = None,
) -> dict[str, Any]:
    """An answer, one entry an input, arrays still arrays.

    Args:
        plan: of the request.
        tokenized: its inputs.
        results: of each input, or of all windows of all inputs.
        attention: what to answer of it, or None.
        runner: what ran.
        span_tokens: places of each span's tokens, by input, or None.
        parts: what each token gives to its input's vector, or None.

    Raises:
        InferenceFailed: a vector is not finite.
    """
    if plan.request.long_texts is not None:
        results = mean_of_windows(tokenized, results)
    answer: dict[str, Any] = {
        "model": runner.manifest.model,
        **(
            task_output(plan.request, results, runner.manifest)
            if span_tokens is None
            else span_output(plan.request, results, span_tokens)
        ),
        "usage": {"tokens": sum(len(item.input_ids) for item in tokenized)},
        "items": [describe_item(item) for item in tokenized],
    }
    if is_quantized(plan.request.encoding_format):
        answer["embeddings"] = quantize_all(answer["embeddings"], plan.request.encoding_format, runner.manifest)
    if attention is not None:
        answer["attention"] = build_attention(attention, tokenized, results, runner.tokenizer)
    if plan.decomposition is not None and parts is not None:
        answer["attention"] = build_contributions(plan.decomposition, plan.request, tokenized, parts, runner.tokenizer)
    return answer if plan.prompt is None else answer | plan.prompt.document()


def describe_item(item: TokenizedInput) -> dict[str, Any]:
    """What became of one input: its tokens, and how many of a longer text were left out."""
    length = len(item.input_ids)
    if item.windows:
        return {"tokens": length, "truncated": False, "windows": len(item.windows)}
    if not item.truncated:
        return {"tokens": length, "truncated": False}
    return {"tokens": length, "truncated": True, "tokens_cut": item.full_length - length}
