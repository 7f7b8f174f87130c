"""What rows and columns of an input's attention maps stand for: tokens or words, with or without special ones.

Known once a text is tokenised, so that the size of an answer is known before the model runs. It knows no weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model.analysis.arrays import BoolArray
from model.analysis.words import Span, find_words, word_offsets
from service.requests.attention_schemas import AttentionRequest
from service.tokenization.tokenized import TokenizedInput, text_offsets
from service.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Axes:
    """Rows and columns of one input's maps.

    Attributes:
        num_tokens: n, rows and columns of the model's own maps.
        rows: how many of their rows are read, from the first on: all n, or those of the first token or word.
        queries: rows of the answer's maps.
        keys: columns of the answer's maps.
        special: [n], which tokens the tokenizer added.
        words: the words that are columns, as spans of the n tokens; None where tokens are.
    """

    num_tokens: int
    rows: int
    queries: int
    keys: int
    special: BoolArray
    words: tuple[Span, ...] | None


def plan_axes(options: AttentionRequest, inputs: Sequence[TokenizedInput], tokenizer: Tokenizer) -> list[Axes]:
    """The axes of each input.

    Raises:
        ValueError: words of an input without a text.
    """
    return [_axes(options, item, special) for item, special in zip(inputs, _special(inputs, tokenizer), strict=True)]


def label_axes(options: AttentionRequest, axes: Axes, item: TokenizedInput, tokens: Sequence[str]) -> dict[str, Any]:
    """The columns: `tokens` or `words`, `offsets` in their text, and of a pair `segments`, the text each is of."""
    if axes.words is not None and item.offsets is not None:
        return _label_words(axes.words, item, tokens)
    kept = range(axes.num_tokens) if not options.exclude_special else np.flatnonzero(~axes.special).tolist()
    offsets = None if item.offsets is None else [item.offsets[token] for token in kept]
    labels = {"tokens": [tokens[token] for token in kept], "offsets": offsets}
    return labels if item.segments is None else labels | {"segments": [item.segments[token] for token in kept]}


def _label_words(words: Sequence[Span], item: TokenizedInput, tokens: Sequence[str]) -> dict[str, Any]:
    text = item.text or ""
    places = word_offsets(words, text_offsets(item), text)
    labels: dict[str, Any] = {
        "words": [_word(text, tokens, *span) for span in zip(words, places, strict=True)],
        "offsets": places,
    }
    if item.segments is None:
        return labels
    segments = [item.segments[start] for start, _ in words]
    shifts = [item.second_start if segment == 1 else 0 for segment in segments]
    offsets = [(start - shift, end - shift) for (start, end), shift in zip(places, shifts, strict=True)]
    return labels | {"offsets": offsets, "segments": segments}


def _axes(options: AttentionRequest, item: TokenizedInput, special: BoolArray) -> Axes:
    num_tokens = len(item.input_ids)
    dropped = special if options.exclude_special else np.zeros_like(special)
    words = _words(item) if options.level == "word" else None
    kept = None if words is None else tuple(word for word in words if not dropped[word[0]])
    keys = num_tokens - int(np.count_nonzero(dropped)) if kept is None else len(kept)
    if options.queries == "all":
        return Axes(num_tokens, num_tokens, keys, keys, special, kept)
    return Axes(num_tokens, 1 if words is None else words[0][1], 1, keys, special, kept)


def _words(item: TokenizedInput) -> list[Span]:
    if item.encoding is None or item.text is None:
        raise ValueError("an input given as token ids has no words")
    return find_words(item.text, text_offsets(item), item.encoding.word_ids)


def _special(inputs: Sequence[TokenizedInput], tokenizer: Tokenizer) -> list[BoolArray]:
    """Which tokens of each input were added by the tokenizer, [n]; of token ids, those that it would add."""
    if all(item.encoding is not None for item in inputs):
        return [_special_of_text(item) for item in inputs]
    (empty,) = tokenizer.encode_now([""])
    added = empty.input_ids[_special_of_text(empty)]
    return [np.isin(item.input_ids, added) for item in inputs]


def _special_of_text(item: TokenizedInput) -> BoolArray:
    mask = [] if item.encoding is None else item.encoding.special_tokens_mask
    return np.array(mask, dtype=np.bool_)


def _word(text: str, tokens: Sequence[str], tokens_at: Span, characters_at: Span) -> str:
    """A word as it stands in the text; a special token has no place there and keeps its own name."""
    return text[slice(*characters_at)] or "".join(tokens[slice(*tokens_at)])
