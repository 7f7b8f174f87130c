"""The attention part of an answer: what is in it, one entry an input, arrays still arrays."""

from collections.abc import Sequence
from typing import Any

from service.answers.maps import make_maps, make_statistics
from service.batching.jobs import JobResult
from service.requests.axes import label_axes
from service.requests.selection import AttentionPlan, AttentionSelection
from service.tokenization.tokenized import TokenizedInput
from service.tokenization.tokenizer import Tokenizer

ARRAYS = ("indices", "weights", "left_out")
"""Fields of an entry that hold one array a layer."""


def build_attention(
    plan: AttentionPlan, tokenized: Sequence[TokenizedInput], results: Sequence[JobResult], tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """One entry an input."""
    make = _statistics if plan.selection.options.form == "stats" else _maps
    return [
        make(plan, index, item, result, tokenizer.tokens(item))
        for index, (item, result) in enumerate(zip(tokenized, results, strict=True))
    ]


def _maps(
    plan: AttentionPlan, index: int, item: TokenizedInput, result: JobResult, tokens: list[str]
) -> dict[str, Any]:
    selection, axes = plan.selection, plan.axes[index]
    entry = {**label_axes(selection.options, axes, item, tokens), **_sources(selection)}
    if selection.options.reduce != "none":
        entry["reduce"] = selection.options.reduce
    if selection.options.form == "norms":
        entry["form"] = "norms"
    return entry | make_maps(result.attentions, selection, axes, result.value_norms)


def _statistics(
    plan: AttentionPlan, index: int, item: TokenizedInput, result: JobResult, tokens: list[str]
) -> dict[str, Any]:
    statistics = make_statistics(
        result.attentions, plan.selection, plan.axes[index], input_ids=item.input_ids, tokens=tokens
    )
    return {**_sources(plan.selection), "statistics": statistics}


def _sources(selection: AttentionSelection) -> dict[str, Any]:
    return {"layers": list(selection.layers), "heads": selection.heads_by_layer}
