"""Rated pairs of texts: a CSV without a header, text, text, rating (the STS benchmark's format)."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from export.errors import SourceError
from export.tokens import TokenizedText, tokenize
from model.analysis.arrays import Float64Array

FEWEST_PAIRS = 8
SEED = 0


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of texts and how alike people find them; `left[i]`, `right[i]` and `ratings[i]` belong together."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    ratings: Float64Array

    def choose(self, places: Sequence[int]) -> "Pairs":
        """Some of the pairs, in the order given."""
        left, right = tuple(self.left[i] for i in places), tuple(self.right[i] for i in places)
        return Pairs(left, right, self.ratings[list(places)])


@dataclass(frozen=True, slots=True)
class TokenizedPairs:
    """Pairs as the network reads them; the texts' places are 0 to N-1 on the left and N to 2N-1 on the right."""

    left: list[TokenizedText]
    right: list[TokenizedText]
    ratings: Float64Array

    @property
    def texts(self) -> list[TokenizedText]:
        """All texts, left ones first."""
        return [*self.left, *self.right]


def read_pairs(path: Path) -> Pairs:
    """Reads a file of rated pairs.

    Raises:
        SourceError: the file cannot be read, a row is not text, text, number, or there are fewer than 8.
    """
    rows: list[tuple[str, str, float]] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.reader(file, strict=True):
                left, right, rating = row
                rows.append((left, right, _rating(rating)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path} cannot be read as CSV: {error}") from error
    except ValueError as error:
        message = f"{path}, row {len(rows) + 1}: expected text,text,rating, without a header ({error})"
        raise SourceError(message) from error
    if len(rows) < FEWEST_PAIRS or len({rating for *_, rating in rows}) < 2:
        raise SourceError(f"{path} holds {len(rows)} pairs: at least {FEWEST_PAIRS} with different ratings are needed")
    return Pairs(tuple(row[0] for row in rows), tuple(row[1] for row in rows), np.array([row[2] for row in rows]))


def tokenize_pairs(pairs: Pairs, tokenizer: Tokenizer, longest: int) -> TokenizedPairs:
    """Pairs of which both texts hold an ordinary token."""
    left = {text.place: text for text in tokenize(pairs.left, tokenizer, longest)}
    right = {text.place: text for text in tokenize(pairs.right, tokenizer, longest)}
    both = sorted(left.keys() & right.keys())
    renumbered = [left[place].at(row) for row, place in enumerate(both)]
    mates = [right[place].at(len(both) + row) for row, place in enumerate(both)]
    return TokenizedPairs(renumbered, mates, pairs.ratings[both])


def shuffle_places(count: int) -> list[int]:
    """Places of so many pairs, in an order that looks random and is the same every time.

    Files of pairs are sorted by where they come from, or alternate between ratings: any stride may meet a pattern.
    """
    places: list[int] = np.random.default_rng(SEED).permutation(count).tolist()
    return places


def require_ratings(pairs: TokenizedPairs, path: Path, purpose: str) -> TokenizedPairs:
    """The pairs, where a correlation with their ratings says something.

    Args:
        pairs: what was drawn from the file.
        path: the file.
        purpose: what they are drawn for, as in "to measure importance".

    Raises:
        SourceError: there are fewer than 8, or all have the same rating.
    """
    different = len(set(pairs.ratings.tolist()))
    if len(pairs.left) < FEWEST_PAIRS or different < 2:
        raise SourceError(
            f"{path}: {len(pairs.left)} pairs with {different} different ratings {purpose}; at least {FEWEST_PAIRS} "
            "with 2 different ratings are needed"
        )
    return pairs


def _rating(text: str) -> float:
    rating = float(text)
    if not np.isfinite(rating):
        raise ValueError(f"rating {text} is not finite")
    return rating
