"""What the report reads: texts, dependency parses and rated pairs.

Parses are CoNLL-U. A sentence becomes a text and units of its surface: a unit is a word, or all words of one written
token if their forms do not simply stand side by side ("zum" is "zu" and "dem"). Arcs between units are the cases that
heads are scored on; arcs to the root, from punctuation, and inside a unit are none.
"""

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import conllu
import numpy as np
from tokenizers import Tokenizer

from export.errors import SourceError
from export.texts import TokenizedText, each_line, tokenize
from model.analysis.arrays import Float64Array
from model.analysis.words import Span

LONGEST_TEXT = 20_000  # characters; encoders read a few thousand at most
FEWEST_TEXTS = FEWEST_SENTENCES = FEWEST_PAIRS = 8  # below this an interval over them says nothing
SEED = 0


def sample_corpus(path: Path, count: int, seed: int = SEED) -> tuple[tuple[str, ...], int]:
    """Draws at most `count` texts, one a line, in the file's order; returns them and how many the file holds.

    Memory holds the sample, never the file (reservoir sampling, Vitter 1985, algorithm R).

    Raises:
        SourceError: the file cannot be read, is no UTF-8, or holds fewer than 8 texts.
    """
    drawn = random.Random(seed)  # noqa: S311 - a sample, no secret
    chosen: list[tuple[int, str]] = []
    seen = 0
    for text in map(str.strip, each_line(path)):
        place = seen if seen < count else drawn.randrange(seen + 1)
        if place < count:
            chosen[place : place + 1] = [(seen, text[:LONGEST_TEXT])]
        seen += 1
    if seen < FEWEST_TEXTS:
        raise SourceError(f"{path} holds {seen} texts, one a line: at least {FEWEST_TEXTS} are needed")
    return tuple(text for _, text in sorted(chosen)), seen


@dataclass(frozen=True, slots=True)
class Arc:
    """One dependent with its head word, as places among a sentence's units; `relation` without its subtype."""

    dependent: int
    head: int
    relation: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text, the places of its units in it ([start, end) in characters), and the arcs between them."""

    text: str
    units: tuple[Span, ...]
    arcs: tuple[Arc, ...]


def read_parses(path: Path, most: int | None = None) -> list[Sentence]:
    """The sentences of a file, the first `most` of them.

    Raises:
        SourceError: the file cannot be read, is no CoNLL-U, or holds fewer than 8 sentences.
    """
    sentences: list[Sentence] = []
    try:
        with path.open(encoding="utf-8-sig") as file:
            for tokens in conllu.parse_incr(file):
                sentences.append(_sentence(tokens))
                if most is not None and len(sentences) == most:
                    break
    except (OSError, UnicodeDecodeError, conllu.exceptions.ParseException) as error:
        raise SourceError(f"{path} cannot be read as CoNLL-U: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        what = f"token or column {error.args[0]} is not there" if isinstance(error, KeyError) else error
        raise SourceError(f"{path}, sentence {len(sentences) + 1} is no dependency parse: {what}") from error
    if len(sentences) < FEWEST_SENTENCES:
        raise SourceError(f"{path} holds {len(sentences)} sentences: at least {FEWEST_SENTENCES} are needed")
    return sentences


def _sentence(tokens: Any) -> Sentence:
    text, units, unit_of = "", [], {}
    for form, space, ids in _written(tokens):
        for word_form, members in _split(form, ids, tokens):
            units.append((len(text), len(text) + len(word_form)))
            unit_of.update(dict.fromkeys(members, len(units) - 1))
            text += word_form
        text += " " if space else ""
    arcs = tuple(
        Arc(unit_of[token["id"]], unit_of[token["head"]], token["deprel"].split(":")[0])
        for token in _words(tokens)
        if token["head"] and token["upos"] != "PUNCT" and unit_of[token["id"]] != unit_of[token["head"]]
    )
    return Sentence(text.rstrip(), tuple(units), arcs)


def _words(tokens: Any) -> Iterator[Any]:
    """The syntactic words: neither ranges (1-2) nor empty nodes (1.1)."""
    return (token for token in tokens if isinstance(token["id"], int))


def _written(tokens: Any) -> Iterator[tuple[str, bool, list[int]]]:
    """The parts of the text: form, whether a space follows, and the words it holds."""
    covered = 0
    for token in tokens:
        space = (token["misc"] or {}).get("SpaceAfter") != "No"
        if isinstance(token["id"], int):
            if token["id"] > covered:
                yield token["form"], space, [token["id"]]
        elif token["id"][1] == "-":
            first, _, covered = token["id"]
            yield token["form"], space, list(range(first, covered + 1))


def _split(form: str, ids: list[int], tokens: Any) -> Iterator[tuple[str, list[int]]]:
    """A written token as its words, where their forms make it up; else whole."""
    forms = {token["id"]: token["form"] for token in _words(tokens) if token["id"] in ids}
    if "".join(forms.values()) == form:
        yield from ((word_form, [word]) for word, word_form in forms.items())
    else:
        yield form, ids


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of texts, and how alike people find them."""

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
        with path.open(newline="", encoding="utf-8-sig") as file:
            for left, right, rating in filter(None, csv.reader(file, strict=True)):  # without empty lines
                rows.append((left, right, _rating(rating)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path} cannot be read as CSV: {error}") from error
    except ValueError as error:
        message = f"{path}, row {len(rows) + 1}: expected text,text,rating, without a header ({error})"
        raise SourceError(message) from error
    if len(rows) < FEWEST_PAIRS or len({rating for *_, rating in rows}) < 2:
        raise SourceError(f"{path} holds {len(rows)} pairs: at least {FEWEST_PAIRS} with different ratings are needed")
    lefts, rights, ratings = zip(*rows, strict=True)
    return Pairs(lefts, rights, np.array(ratings))


def tokenize_pairs(pairs: Pairs, tokenizer: Tokenizer, longest: int) -> TokenizedPairs:
    """Pairs of which both texts hold an ordinary token."""
    left = {text.place: text for text in tokenize(pairs.left, tokenizer, longest)}
    right = {text.place: text for text in tokenize(pairs.right, tokenizer, longest)}
    both = sorted(left.keys() & right.keys())
    renumbered = [left[place].at(row) for row, place in enumerate(both)]
    mates = [right[place].at(len(both) + row) for row, place in enumerate(both)]
    return TokenizedPairs(renumbered, mates, pairs.ratings[both])


def shuffle_places(count: int) -> list[int]:
    """Places of `count` pairs, in an order that looks random and is the same every time.

    Files of pairs are sorted by where they come from, or alternate between ratings: any stride may meet a pattern.
    """
    places: list[int] = np.random.default_rng(SEED).permutation(count).tolist()
    return places


def require_ratings(pairs: TokenizedPairs, path: Path, purpose: str) -> TokenizedPairs:
    """The pairs drawn from a file for a purpose, as "to measure importance on", if a correlation says something.

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
