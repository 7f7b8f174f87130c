"""Which tokens are punctuation, by their text."""

import unicodedata
from collections.abc import Sequence

import numpy as np

from model.analysis.arrays import BoolArray

# What tokenizers write for "continues a word" (WordPiece) and "begins a word" (byte-level BPE, SentencePiece).
_MARKERS = ("##", "Ġ", "▁")


def punctuation_mask(pieces: Sequence[str], special: BoolArray) -> BoolArray:
    """Which tokens hold punctuation only, [n]; special tokens never do.

    A character is punctuation as BERT's own tokenizer splits it: Unicode category P, or an ASCII character that is
    neither a letter, a digit, a control character nor a space ("$", "+", "^").

    Args:
        pieces: each token's text, as it stands in the input or as the vocabulary writes it.
        special: [n].
    """
    return np.array([_is_punctuation(piece) for piece in pieces], dtype=np.bool_) & ~special


def _is_punctuation(piece: str) -> bool:
    for marker in _MARKERS:
        if len(piece) > len(marker):
            piece = piece.removeprefix(marker)
    return bool(piece) and all(map(_is_mark, piece))


def _is_mark(character: str) -> bool:
    category = unicodedata.category(character)
    return category.startswith("P") or (character.isascii() and category.startswith("S"))
