"""Spans of requests: ranges of characters of texts that are read whole, one vector a span.

This is late chunking (Günther et al. 2024): the vector of a span is the mean of the last hidden states of its tokens.
These have read the whole text, unlike those of a part that is embedded by itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from model.artifact import Manifest
from service.errors import Invalid
from service.inference.backend import Int64Array
from service.requests.schemas import Span, Spans
from service.tokenization.inputs import Inputs
from service.tokenization.rows import TokenizedInput

PARAM = "spans"


class SpanTokens(NamedTuple):
    """Tokens of a text's spans, which may be thousands that hold the whole text each.

    Attributes:
        places: [m], of all tokens that a span can have.
        ranges: [2, spans], start and end in `places` of each span's tokens.
    """

    places: Int64Array
    ranges: Int64Array


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """Spans by input, [start, end) in characters of the text as it was sent; `start` is the first input's number."""

    spans: Spans
    start: int = 0

    def __len__(self) -> int:
        return sum(map(len, self.spans))

    def of(self, place: slice) -> "SpanPlan":
        """The spans of some of the inputs."""
        return replace(self, spans=self.spans[place], start=self.start + (place.start or 0))

    def find_tokens(self, tokenized: Sequence[TokenizedInput], prompt_characters: int) -> list[SpanTokens]:
        """The tokens of each input's spans.

        A token is of the span that its last character is in, so spans that share no character share no token.

        Raises:
            Invalid: a span without a token, or one that reaches into what was cut off.
        """
        return [
            _find_tokens(spans, item, prompt_characters, index)
            for index, (spans, item) in enumerate(zip(self.spans, tokenized, strict=True), self.start)
        ]


def read_spans(spans: Spans, inputs: Inputs, manifest: Manifest) -> SpanPlan:
    """The spans of a request, checked against its texts before a prompt is put in front of them.

    Raises:
        Invalid: no texts, a model that does not take the mean of its tokens, or ranges that are not in the texts.
    """
    if inputs.texts is None:
        raise Invalid.at(PARAM, "only texts have spans of characters, not token ids or pairs; send texts")
    config = manifest.config
    if manifest.task != "embedding":
        raise Invalid.at(PARAM, f"{manifest.model} returns no vector of a text (its task is {manifest.task})")
    if config.pooling != "mean" or config.projections:
        way = "mean and a dense layer" if config.projections else config.pooling
        raise Invalid.at(
            PARAM, f"a span's vector is the mean of its tokens, and {manifest.model} pools by {way}; leave spans out"
        )
    if len(spans) != len(inputs.texts):
        raise Invalid.at(PARAM, f"expected a list of spans for each of {len(inputs.texts)} inputs, got {len(spans)}")
    for index, (text, ranges) in enumerate(zip(inputs.texts, spans, strict=True)):
        for place, (start, end) in enumerate(ranges):
            if not start < end <= len(text):
                raise Invalid.at(
                    f"{PARAM}[{index}][{place}]",
                    f"expected [start, end] with start < end <= {len(text)}, the text's end",
                )
    return SpanPlan(spans)


def _find_tokens(spans: Sequence[Span], item: TokenizedInput, shift: int, index: int) -> SpanTokens:
    if item.encoding is None:
        raise TypeError("spans want texts that are tokenised with their offsets")
    starts, ends = np.array(item.encoding.offsets, dtype=np.int64).T
    is_ordinary = (np.array(item.encoding.special_tokens_mask) == 0) & (ends > starts)
    places = np.flatnonzero(is_ordinary)
    characters = np.array(spans, dtype=np.int64) + shift
    ranges = np.searchsorted(ends[places] - 1, characters.T)
    first, last = _kept_characters(item.text or "", starts[places], ends[places]) if item.truncated else (0, math.inf)
    for place, ((start, end), is_empty) in enumerate(zip(characters.tolist(), ranges[0] == ranges[1], strict=True)):
        name = f"{PARAM}[{index}][{place}]"
        if start < first or end > last:
            raise Invalid.at(name, "reaches into what was cut off; send the text in parts, or shorter")
        if is_empty:
            raise Invalid.at(name, "no token ends in it; give a longer span")
    return SpanTokens(places, ranges)


def _kept_characters(text: str, starts: Int64Array, ends: Int64Array) -> tuple[int, int]:
    """[start, end) of what was kept of a text, by its tokens, and of the white space around it."""
    first, last = (int(starts[0]), int(ends[-1])) if len(starts) else (0, 0)
    return len(text[:first].rstrip()), len(text) - len(text[last:].lstrip())
