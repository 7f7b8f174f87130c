"""What a request wants encoded, checked: texts or token ids, at least one, and not more than the limits allow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.errors import Invalid, TooLarge
from service.tokenizer import TokenizedInput

EXPECTED = "expected a text, a list of texts, a list of token ids or a list of lists of token ids"

TokenIds = Sequence[int]


@dataclass(frozen=True, slots=True)
class Inputs:
    """One of the two is set."""

    texts: Sequence[str] | None = None
    token_ids: Sequence[TokenIds] | None = None

    def __len__(self) -> int:
        return len(self.texts if self.texts is not None else self.token_ids or ())


def read_inputs(value: Any, *, param: str = "inputs", max_texts: int) -> Inputs:
    """Tells apart the four forms of a JSON value. Messages name places, never what stands there.

    Raises:
        Invalid: another form, an empty list, or a list of mixed kinds.
        TooLarge: more inputs than allowed.
    """
    if type(value) is str:
        return Inputs(texts=(value,))
    if type(value) is not list:
        raise Invalid(f"{param}: {EXPECTED}", param=param)
    if not value:
        raise Invalid(f"{param}: the list is empty; give at least one input", param=param)
    kinds = set(map(type, value))
    if kinds == {int}:
        return Inputs(token_ids=(value,))
    if len(value) > max_texts:
        raise TooLarge(f"{param}: {len(value)} inputs, at most {max_texts} a request are taken", param=param)
    if kinds == {str}:
        return Inputs(texts=value)
    if kinds == {list}:
        _check_lists(value, param)
        return Inputs(token_ids=value)
    raise Invalid(f"{param}: {EXPECTED}; all of one kind", param=param)


def as_tokenized(
    inputs: Sequence[TokenIds], *, param: str = "inputs", start: int = 0, vocab_size: int, max_length: int
) -> list[TokenizedInput]:
    """Token ids as they are given, once it is sure that the model can take them; the first is number `start`.

    Raises:
        Invalid: an id outside the vocabulary.
        TooLarge: more ids than the model takes; ids are never cut, the special tokens among them are the caller's.
    """
    checked = []
    for index, ids in enumerate(inputs, start):
        if len(ids) > max_length:
            raise TooLarge(
                f"{param}[{index}]: {len(ids)} token ids, the model takes {max_length}; token ids are never cut",
                param=f"{param}.{index}",
            )
        if min(ids) < 0 or max(ids) >= vocab_size:
            raise Invalid(
                f"{param}[{index}]: a token id is out of range, expected 0 to {vocab_size - 1}",
                param=f"{param}.{index}",
            )
        checked.append(TokenizedInput(np.array(ids, dtype=np.int64), False, len(ids), None))
    return checked


def refuse_long_texts(texts: Sequence[str], limit: int, *, param: str = "inputs", names: Sequence[str] = ()) -> None:
    """Refuses a text whose tokens would take too much memory to count, wherever it would be cut.

    Args:
        texts: as they would be tokenised.
        limit: most characters of one.
        param: the caller's name for the list of them.
        names: the caller's name for each, where they are not a list.

    Raises:
        TooLarge: naming the text's place and both numbers.
    """
    for index, text in enumerate(texts):
        if len(text) > limit:
            name, field = _place(index, param, names)
            raise TooLarge(
                f"{name}: {len(text)} characters, at most {limit} a text are taken; send it in parts", param=field
            )


def refuse_truncated(
    tokenized: Sequence[TokenizedInput],
    *,
    param: str = "inputs",
    start: int = 0,
    names: Sequence[str] = (),
    max_length: int,
) -> None:
    """What `truncate: false` asks for; arguments as `refuse_empty` has them.

    Raises:
        TooLarge: a text is longer than the model takes; the message holds its length.
    """
    for index, item in enumerate(tokenized, start):
        if item.truncated:
            name, field = _place(index, param, names)
            raise TooLarge(
                f"{name}: {item.full_length} tokens, the model takes {max_length}; shorten the text or allow truncate",
                param=field,
            )


def refuse_empty(
    tokenized: Sequence[TokenizedInput], *, param: str = "inputs", start: int = 0, names: Sequence[str] = ()
) -> None:
    """Refuses a text that is no token at all, where a tokenizer adds none of its own: there is nothing to pool.

    Args:
        tokenized: what would run; the first is number `start`.
        param: the caller's name for the list of them.
        start: number of the first of them.
        names: the caller's name for each, where they are not a list.

    Raises:
        Invalid: naming the text's place.
    """
    for index, item in enumerate(tokenized, start):
        if not len(item.input_ids):
            name, field = _place(index, param, names)
            raise Invalid(
                f"{name}: no tokens, and this model's tokenizer adds none; give a text with at least one", param=field
            )


def _place(index: int, param: str, names: Sequence[str]) -> tuple[str, str]:
    """What messages call a text, and what `param` calls it."""
    return (names[index], names[index]) if names else (f"{param}[{index}]", f"{param}.{index}")


def _check_lists(value: list[list[Any]], param: str) -> None:
    for index, ids in enumerate(value):
        place = f"{param}.{index}"
        if not ids:
            raise Invalid(f"{param}[{index}]: the list is empty; give at least one token id", param=place)
        if set(map(type, ids)) != {int}:
            raise Invalid(f"{param}[{index}]: expected token ids, whole numbers only", param=place)
