"""Weights between words instead of tokens (Clark et al. 2019, section 4.1, "token-token to word-word").

What a word receives is the sum over its pieces; what it gives is the mean over its pieces: so rows still sum to 1.
Which tokens belong together follows from where they stand in the text, so that a text has the same words whatever the
tokenizer: it may split at spaces only (SentencePiece), at changes between letters and digits (byte-level BPE), or not
at all before it looks for pieces. Also: weights without the tokens that the tokenizer added, and which tokens are
punctuation.
"""

import itertools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from model.analysis.arrays import BoolArray, Float32Array

Span = tuple[int, int]
"""[start, end): of tokens, or of characters."""


# Ideographs of Chinese, Japanese and Korean, each a word of its own, as BERT's tokenizer has them.
_IDEOGRAPHS = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)

_SPACE = re.compile(r"[^\S\x0b\x0c\x1c-\x1f\x85]")  # none of the control characters but tab and ends of lines


def find_words(text: str, offsets: Sequence[Span], word_ids: Sequence[int | None]) -> list[Span]:
    """The words of a text as spans of tokens, in order, every token in exactly one.

    A word ends at white space and at either side of a punctuation mark or an ideograph, as BERT's own tokenizer splits
    a text. A token that crosses such a place belongs to the word it began with; pieces of one character stay together.
    A token of white space only begins the word that follows. A special token is a word of its own.

    `offsets` are each token's [start, end) in the text, in characters. `word_ids` are `Encoding.word_ids` of the
    tokenizers library: None for special tokens; they decide for tokens of no text.
    """
    begins = [
        before[1] is None or after[1] is None or _begins_word(text, before, after)
        for before, after in itertools.pairwise(zip(offsets, word_ids, strict=True))
    ]
    starts = [0, *(token for token, is_first in enumerate(begins, 1) if is_first)]
    return list(itertools.pairwise([*starts, len(offsets)])) if offsets else []


def _begins_word(text: str, before: tuple[Span, int | None], after: tuple[Span, int | None]) -> bool:
    (previous, previous_id), (token, token_id) = before, after
    first, last = text[slice(*token)].lstrip()[:1], text[slice(*previous)].rstrip()[-1:]
    if not last:  # white space of its own begins the word that follows
        return False
    if not first:
        return previous_id != token_id or token[0] < token[1]
    if token[0] < previous[1]:
        return False
    is_apart = _SPACE.search(text, previous[1] - 1, token[0] + 1) is not None  # what is between may be long
    return is_apart or _stands_alone(last) or _stands_alone(first)


def _stands_alone(character: str) -> bool:
    return is_punctuation(character) or any(low <= ord(character) <= high for low, high in _IDEOGRAPHS)


def to_words(weights: Float32Array, words: Sequence[Span], queries: Sequence[Span] | None = None) -> Float32Array:
    """Token weights [..., Q, K] as word weights: the sum over a word's keys, the mean over a word's queries.

    `words` are spans of all K keys one after the other, as `find_words` gives; `queries` those of the Q rows, None
    where the rows are the same tokens as the keys. For the first word's row alone, give its tokens' rows and
    `[words[0]]`.
    """
    queries = words if queries is None else queries
    keys_summed = np.add.reduceat(weights, [start for start, _ in words], axis=-1, dtype=np.float64)
    summed = np.add.reduceat(keys_summed, [start for start, _ in queries], axis=-2)
    pieces = np.array([end - start for start, end in queries], dtype=np.float64)
    return (summed / pieces[:, np.newaxis]).astype(np.float32)


def word_offsets(words: Sequence[Span], offsets: Sequence[Span], text: str) -> list[Span]:
    """The place of each word in the text, in characters: from its first token's start to its last token's end.

    White space at either end, which some tokenizers count as part of a token, is left out. Special tokens stay (0, 0).
    """
    return [_trimmed(text, offsets[start][0], offsets[end - 1][1]) for start, end in words]


def _trimmed(text: str, start: int, end: int) -> Span:
    found = text[start:end]
    if not found.strip():
        return start, end
    return end - len(found.lstrip()), start + len(found.rstrip())


def exclude_special(
    weights: Float32Array, special: BoolArray, *, queries: BoolArray | None = None, renormalise: bool = False
) -> Float32Array:
    """Drops the special keys [K] and queries of weights [..., Q, K].

    Without `renormalise` a row's sum is the mass it kept, so that what special tokens took stays visible. With it each
    row is divided by that sum and sums to 1 again; a row that kept nothing at all stays 0. `queries` [Q] are the rows
    that are dropped; None where the rows are the same tokens as the keys. A caller who asked for one special token's
    row keeps it by giving False.

    Returns:
        [..., Q kept, K kept], C-contiguous; a text of special tokens only has neither rows nor columns left.
    """
    queries = special if queries is None else queries
    kept = np.ascontiguousarray(weights[..., ~queries, :][..., ~special])
    if renormalise:
        mass = kept.sum(axis=-1, dtype=np.float64, keepdims=True)
        kept = (kept / np.where(mass > 0, mass, 1.0)).astype(np.float32)
    return kept


# What tokenizers write for "continues a word" (WordPiece) and "begins a word" (byte-level BPE, SentencePiece).
_MARKERS = ("##", "Ġ", "▁")


def punctuation_mask(pieces: Sequence[str], special: BoolArray) -> BoolArray:
    """Which tokens hold punctuation only, [n]; special tokens never do. Pieces are of the text, or of a vocabulary."""
    return np.array([_holds_punctuation_only(piece) for piece in pieces], dtype=np.bool_) & ~special


def _holds_punctuation_only(piece: str) -> bool:
    for marker in _MARKERS:
        if len(piece) > len(marker):
            piece = piece.removeprefix(marker)
    return bool(piece) and all(map(is_punctuation, piece))


def is_punctuation(character: str) -> bool:
    """As BERT's own tokenizer splits: Unicode category P, or an ASCII symbol ("$", "+", "^")."""
    category = unicodedata.category(character)
    return category.startswith("P") or (character.isascii() and category.startswith("S"))
