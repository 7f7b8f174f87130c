"""What `POST /explain` answers, as JSON types and arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from service.answers.comparison import Explained, ExplainedTokens
from service.answers.contribution_table import largest_pairs, sum_words
from service.answers.network import ExplainedScore
from service.inference.backend import Float32Array
from service.requests.attention_schemas import AttentionRequest
from service.requests.axes import Axes, label_axes
from service.requests.explain_schemas import ExplainRequest
from service.tokenization.tokenized import TokenizedInput


def similarity_answer(
    explained: Explained, request: ExplainRequest, texts: Sequence[TokenizedInput], axes: Sequence[Axes]
) -> dict[str, Any]:
    """Of two texts: the similarity, its contributions by tokens or words, and both texts."""
    cells = explained.contributions
    for axis, text_axes in enumerate(axes):
        cells = sum_words(cells, text_axes.words, axis)
    table: dict[str, Any] = {"contributions": np.ascontiguousarray(cells)}
    if request.top_pairs is not None:
        pairs, rest = largest_pairs(cells, request.top_pairs)
        table = {"top_pairs": pairs, "left_out": rest}
    a, b = (
        side_answer(side, request, text, text_axes)
        for side, text, text_axes in zip((explained.a, explained.b), texts, axes, strict=True)
    )
    whole = {name: value for name, value in explained.document().items() if name != "contributions"}
    return {**whole, **table, "a": a, "b": b}


def score_answer(
    explained: ExplainedScore, request: ExplainRequest, text: TokenizedInput, axes: Axes, model: str
) -> dict[str, Any]:
    """Of a classifier's text or pair: the logits, what each token or word adds to them, and the masses of its texts."""
    return {
        "model": model,
        "through": request.through,
        "labels": list(explained.labels),
        "logits": explained.logits,
        "contributions": np.ascontiguousarray(sum_words(explained.contributions, axes.words, 1)),
        "masses": _masses(explained.contributions, text, axes),
        "text": side_answer(explained.text, request, text, axes),
        "usage": {"tokens": len(text.input_ids)},
    }


def side_answer(side: ExplainedTokens, request: ExplainRequest, text: TokenizedInput, axes: Axes) -> dict[str, Any]:
    """One text, by tokens or words."""
    answer = label_axes(AttentionRequest(level=request.level), axes, text, side.tokens)
    if side.saliency is not None:
        answer["saliency"] = sum_words(side.saliency, axes.words, 0)
    if side.own_shares is not None and axes.words is None:
        answer["own_shares"] = np.ascontiguousarray(side.own_shares)
    return {**answer, "truncated": side.truncated}


def _masses(cells: Float32Array, text: TokenizedInput, axes: Axes) -> dict[str, Float32Array]:
    """Contributions [labels, n + 1] added up over special tokens, each text, and the biases."""
    segments = text.segments or [None if is_special else 0 for is_special in axes.special]
    places = {"special": None, "a": 0, "b": 1} if text.segments is not None else {"special": None, "text": 0}
    of_text = {name: [*(found == place for found in segments), False] for name, place in places.items()}
    masses = {name: cells[:, columns].sum(axis=1) for name, columns in of_text.items()}
    return {**masses, "biases": np.ascontiguousarray(cells[:, -1])}
