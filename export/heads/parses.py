"""Dependency parses in CoNLL-U, read as a stream with the `conllu` package.

A sentence becomes a text and units of its surface: a unit is a word, or all words that one written token holds where
their forms do not simply stand side by side ("zum" is "zu" and "dem"). Arcs between units are the cases that heads are
scored on; arcs to the root, from punctuation, and inside a unit are none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import conllu

from export.errors import SourceError
from model.analysis.words import Span

FEWEST_SENTENCES = 8


@dataclass(frozen=True, slots=True)
class Arc:
    """One dependent with its head word, as places among a sentence's units; `relation` without its subtype."""

    dependent: int
    head: int
    relation: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text, where its units stand in it ([start, end) in characters), and the arcs between them."""

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
        with path.open(encoding="utf-8") as file:
            for tokens in conllu.parse_incr(file):
                sentences.append(_sentence(tokens))
                if most is not None and len(sentences) == most:
                    break
    except (OSError, UnicodeDecodeError, conllu.exceptions.ParseException) as error:
        raise SourceError(f"{path} cannot be read as CoNLL-U: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(f"{path}, sentence {len(sentences) + 1} is no dependency parse: {error!r}") from error
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
    """What stands in the text: form, whether a space follows, and the words it holds."""
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
