"""Which tokens are punctuation, by their text."""

import unicodedata
from collections.abc import Sequence

import numpy as np

from model.analysis.arrays import BoolArray

# What tokenizers write for "continues a word" (WordPiece) and "begins a word" (byte-level BPE, SentencePiece).
_MARKERS = ("##", "Ġ", "▁")


def punctuation_mask(pieces: Sequence[str], special: BoolArray) -> BoolArray:
    """Which tokens hold punctuation only, [n]; special tokens never do.

    Args:
        pieces: each token's text, as it stands in the input or as the vocabulary writes it.
        special: [n].
    """
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
