"""What a request wants encoded: checked against the limits, and read as the model sees it.

Texts, token ids, or pairs of either. Messages name places, never values.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np

from service.errors import Invalid, TooLarge
from service.tokenization.rows import NoRoom, PairTruncation, TokenizedInput
from service.tokenization.tokenizer import Tokenizer

EXPECTED = "expected a text, a list of texts, a list of token ids or a list of lists of token ids"
PAIRS_EXPECTED = "expected a list of pairs, each of two texts or of two lists of token ids"

TokenIds = Sequence[int]

Truncate = bool | Literal["start"]
"""What happens to a text that is too long: true cuts its end off, `"start"` its start, false refuses it."""

Cut = Literal["NONE", "START", "END"]
CUTS: Mapping[Cut, Truncate] = {"NONE": False, "START": "start", "END": True}
"""The same as Cohere and NVIDIA name it."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What to tokenise, in one of four forms; the others are None.

    Attributes:
        texts: each by itself.
        token_ids: each by itself, special tokens included.
        text_pairs: two texts a row.
        id_pairs: token ids of two texts a row, without special tokens.
    """

    texts: Sequence[str] | None = None
    token_ids: Sequence[TokenIds] | None = None
    text_pairs: Sequence[Sequence[str]] | None = None
    id_pairs: Sequence[Sequence[TokenIds]] | None = None

    def __len__(self) -> int:
        return next((len(form) for form in self._forms if form is not None), 0)

    def __getitem__(self, part: slice) -> "Inputs":
        """Some of the rows, in the same form."""
        return Inputs(*(form and form[part] for form in self._forms))

    @property
    def _forms(self) -> tuple[Any, ...]:
        return self.texts, self.token_ids, self.text_pairs, self.id_pairs

    @property
    def rows(self) -> Iterable[Sequence[str]]:
        """The texts of each row; none for token ids."""
        return self.text_pairs or ((text,) for text in self.texts or ())

    @property
    def is_paired(self) -> bool:
        """Whether rows have two texts."""
        return self.text_pairs is not None or self.id_pairs is not None


@dataclass(frozen=True, slots=True)
class InputNames:
    """What a caller calls its inputs, for messages and `param` of errors.

    Attributes:
        listed: the list of them; empty where each has a name of its own.
        singles: names of those that come before the list.
        each: the name of each, if they do not count up one list.
        start: how many come before these, which are a part of all.
    """

    listed: str = "inputs"
    singles: tuple[str, ...] = ()
    each: Sequence[str] | None = None
    start: int = 0

    @property
    def all(self) -> str:
        """What messages call all of them."""
        return " and ".join(filter(None, (*self.singles, self.listed)))

    @property
    def field(self) -> str:
        """What `param` calls all of them: one field."""
        return self.listed or self.singles[0]

    def of(self, index: int) -> str:
        """What messages call one of them."""
        known, place = self.singles if self.each is None else self.each, self.start + index
        return known[place] if place < len(known) else f"{self.listed}[{place - len(known)}]"


INPUTS = InputNames()
PAIRS = InputNames(listed="pairs")


def read_inputs(value: Any, *, names: InputNames = INPUTS, max_texts: int) -> Inputs:
    """Tells apart the four forms of a JSON value.

    Raises:
        Invalid: another form, an empty list, or a list of mixed kinds.
        TooLarge: more inputs than allowed.
    """
    if type(value) is str:
        return Inputs(texts=(value,))
    if type(value) is not list:
        raise Invalid(f"{names.all}: {EXPECTED}", param=names.field)
    if not value:
        raise Invalid(f"{names.all}: the list is empty; give at least one input", param=names.field)
    kinds = set(map(type, value))
    if kinds == {int}:
        return Inputs(token_ids=(value,))
    if len(value) > max_texts:
        raise TooLarge(f"{names.all}: {len(value)} inputs, at most {max_texts} a request are taken", param=names.field)
    if kinds == {str}:
        return Inputs(texts=value)
    if kinds == {list}:
        for index, ids in enumerate(value):
            if not ids:
                raise Invalid.at(names.of(index), "the list is empty; give at least one token id")
            if set(map(type, ids)) != {int}:
                raise Invalid.at(names.of(index), "expected token ids, whole numbers only")
        return Inputs(token_ids=value)
    raise Invalid(f"{names.all}: {EXPECTED}; all of one kind", param=names.field)


def read_pairs(value: Any, *, names: InputNames = PAIRS, max_texts: int) -> Inputs:
    """Pairs of texts, or of lists of token ids, from a JSON value.

    Raises:
        Invalid: another form, an empty list, or pairs of mixed kinds.
        TooLarge: more pairs than allowed.
    """
    if type(value) is not list or not value:
        raise Invalid.at(names.listed, PAIRS_EXPECTED)
    if len(value) > max_texts:
        raise TooLarge.at(names.listed, f"{len(value)} pairs, at most {max_texts} a request are taken")
    kinds: set[type] = set()
    for index, pair in enumerate(value):
        if type(pair) is not list or len(pair) != 2:
            raise Invalid.at(names.of(index), "expected two texts, or two lists of token ids")
        kinds.update(map(type, pair))
    if kinds == {str}:
        return Inputs(text_pairs=value)
    if kinds == {list} and all(set(map(type, ids)) <= {int} for pair in value for ids in pair):
        return Inputs(id_pairs=value)
    raise Invalid.at(names.listed, f"{PAIRS_EXPECTED}; all of one kind")


async def tokenize(
    tokenizer: Tokenizer,
    inputs: Inputs,
    *,
    vocab_size: int,
    names: InputNames = INPUTS,
    truncate: Truncate = True,
    pair_truncation: PairTruncation = "longest_first",
    most_tokens: Sequence[int | None] | None = None,
    overlap: int | None = None,
    ids_only: bool = False,
    check_lengths: Callable[[Sequence[int]], None] | None = None,
    deadline: float | None = None,
) -> list[TokenizedInput]:
    """Inputs as the model sees them, for errors by the caller's `names`; token ids by themselves are never cut.

    Each text of a row is cut to its own of `most_tokens`, special tokens left out. With `overlap` texts are read in
    windows that share so many tokens, and nothing is cut off. `ids_only` leaves out tokens and offsets, `check_lengths`
    refuses rows of pairs by their tokens before they are made. `deadline` is a `time.monotonic()` value.

    Raises:
        ServiceError: Invalid or TooLarge for token ids that the model does not take, a text that is no Unicode, or a
            long one where cutting is not allowed; DeadlineExceeded.
    """
    from_start = truncate == "start"
    try:
        if inputs.token_ids is not None or inputs.id_pairs is not None:
            read = partial(_read_ids, tokenizer, inputs, names, vocab_size, pair_truncation, from_start=from_start)
            ids = inputs.token_ids or list(chain.from_iterable(inputs.id_pairs or ()))
            # A row of a pair takes as long as eight ids by themselves: its segments and types are made too.
            cost = (8 if inputs.id_pairs else 1) * (len(ids) + sum(map(len, ids)))
            found = await tokenizer.read_ids(cost, read, deadline)
        elif (text_pairs := inputs.text_pairs) is not None:
            found = await tokenizer.encode_pairs(
                text_pairs,
                truncation=pair_truncation,
                from_start=from_start,
                most=most_tokens,
                check_lengths=check_lengths,
                ids_only=ids_only,
                deadline=deadline,
            )
        elif overlap is not None:
            found = await tokenizer.encode_windows(inputs.texts or (), overlap, ids_only=ids_only, deadline=deadline)
        else:
            most = most_tokens[0] if most_tokens else None
            found = await tokenizer.encode(
                inputs.texts or (), from_start=from_start, most=most, ids_only=ids_only, deadline=deadline
            )
    except NoRoom as error:
        raise TooLarge.at(names.of(error.index), str(error)) from None
    except TypeError:  # what the library says of half a surrogate pair, which no JSON brings here
        refuse_surrogates(inputs, names)
        raise
    if not truncate:
        refuse_truncated(found, names)
    return found


def _read_ids(
    tokenizer: Tokenizer,
    inputs: Inputs,
    names: InputNames,
    vocab_size: int,
    truncation: PairTruncation,
    *,
    from_start: bool,
) -> list[TokenizedInput]:
    """Token ids as they are given, the special tokens among them the caller's; pairs of them in their template."""
    pairs, most = inputs.id_pairs, tokenizer.max_sequence_length
    for index, row in enumerate(pairs or zip(inputs.token_ids or ())):
        for ids in row:
            if len(ids) > most and pairs is None:
                raise TooLarge.at(
                    names.of(index), f"{len(ids)} token ids, the model takes {most}; token ids are never cut"
                )
            if ids and (min(ids) < 0 or max(ids) >= vocab_size):
                raise Invalid.at(names.of(index), f"a token id is out of range, expected 0 to {vocab_size - 1}")
    if pairs is not None:
        return tokenizer.join_ids(pairs, truncation, from_start=from_start)
    return [TokenizedInput(np.array(ids, dtype=np.int64), False, len(ids), None) for ids in inputs.token_ids or ()]


def refuse_surrogates(inputs: Inputs, names: InputNames) -> None:
    """Refuses (Invalid) half of a surrogate pair, as a file read with `surrogateescape` has: no tokenizer takes it."""
    for index, row in enumerate(inputs.rows):
        for text in row:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise Invalid.at(names.of(index), f"character {error.start} is half of a surrogate pair") from None


def refuse_long_texts(inputs: Inputs, limit: int, *, names: InputNames = INPUTS) -> None:
    """Refuses (TooLarge) a text of more characters than the limit: its tokens would take too much memory to count."""
    for index, row in enumerate(inputs.rows):
        if (longest := max(map(len, row))) > limit:
            raise TooLarge.at(
                names.of(index), f"{longest} characters, at most {limit} a text are taken; send it in parts"
            )


def refuse_truncated(tokenized: Sequence[TokenizedInput], names: InputNames) -> None:
    """Refuses (TooLarge) a text that is longer than the model takes in its role, as `truncate: false` asks for."""
    for index, item in enumerate(tokenized):
        if item.truncated:
            raise TooLarge.at(
                names.of(index),
                f"{item.full_length} tokens, the model takes {len(item.input_ids)}; shorten the text or allow truncate",
            )


def refuse_empty(tokenized: Sequence[TokenizedInput], *, names: InputNames) -> None:
    """Refuses (Invalid) a text that is no token at all, where a tokenizer adds none of its own: nothing to pool."""
    for index, item in enumerate(tokenized):
        if not len(item.input_ids):
            raise Invalid.at(
                names.of(index), "no tokens, and this model's tokenizer adds none; give a text with at least one"
            )
