"""One row of token ids from one text or two: what the tokenizer's template puts around them, and what is cut.

Each text is tokenised by itself, so the query of a hundred documents is tokenised once. A row is the same as the
`tokenizers` library makes of the texts together. It knows no model and no requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from model.config_parts import QueryExpansion
from service.inference.backend import Int64Array

Offset = tuple[int, int]

Row = TypeVar("Row", bound=np.generic)

PairTruncation = Literal["longest_first", "only_first", "only_second"]
"""Which text of a pair is cut, by the names of `transformers`: the longer one until both are as long, or one alone."""

RowTruncation = PairTruncation | Literal["as_one"]
"""How rows are cut: also as if both texts were one: the second, and once it is gone the first."""

SEPARATOR = "\n"
"""Between the two texts of a pair if they are kept as one: no word of the first goes on in the second."""


@dataclass(frozen=True, slots=True)
class KeptEncoding:
    """What is read of a row's tokens besides their ids; the library's own `Encoding` holds on to all that was cut off.

    Its attributes are the library's; `word_ids` are None and `special_tokens_mask` 1 for special tokens.
    """

    tokens: list[str]
    offsets: list[Offset]
    word_ids: list[int | None]
    special_tokens_mask: list[int]


@dataclass(slots=True)  # frozen, one takes a microsecond more to make
class TokenizedInput:
    """One input as the model sees it.

    Attributes:
        input_ids: [n], special tokens included.
        truncated: whether the text was longer than the model takes, and its end or start was cut off.
        full_length: tokens before it was cut.
        encoding: tokens and offsets; None for an input given as token ids, and where nothing but ids was asked for.
        sources: the tokenised text, or both of a pair; empty for an input given as token ids.
        type_ids: [n], token types; None where all are 0.
        segments: [n], the text of a pair that each token is of, 0 or 1, None for special tokens; None for one text.
        windows: of a text that is read in windows, each as the model sees it; `input_ids` is then all of them, and
            `encoding` is of the text as if it were read whole.
        window_starts: which of the text's own tokens is the first of each window.
        added: special tokens in front of a window's own tokens, and behind them.
        seen: how many of the tokens others see; None for all. Tokens behind a query have no place in `encoding`.
    """

    input_ids: Int64Array
    truncated: bool
    full_length: int
    encoding: KeptEncoding | None
    sources: tuple[str, ...] = ()
    type_ids: Int64Array | None = None
    segments: Sequence[int | None] | None = None
    windows: tuple["TokenizedInput", ...] = ()
    window_starts: tuple[int, ...] = ()
    added: tuple[int, int] = (0, 0)
    seen: int | None = None

    @property
    def offsets(self) -> Sequence[Offset] | None:
        """Where each token is in its own text, [start, end) in characters; (0, 0) for special tokens."""
        return None if self.encoding is None else self.encoding.offsets

    @property
    def text(self) -> str | None:
        """The tokenised text; a pair's two one behind the other, joined again with every call.

        A thousand documents share one query: kept joined, they would take its memory as often.
        """
        return SEPARATOR.join(self.sources) if self.sources else None

    @property
    def second_start(self) -> int:
        """Of a pair, where the second text begins in `text`."""
        return len(self.sources[0]) + len(SEPARATOR) if len(self.sources) > 1 else 0


def text_offsets(item: TokenizedInput) -> list[Offset]:
    """Where each token is in `item.text`: as `offsets`, but for the second text of a pair."""
    offsets = list(item.offsets or ())
    if item.segments is None:
        return offsets
    shifts = [item.second_start if segment == 1 else 0 for segment in item.segments]
    return [(start + shift, end + shift) for (start, end), shift in zip(offsets, shifts, strict=True)]


def offsets_behind(item: TokenizedInput, prompt_length: int) -> list[Offset]:
    """Where each token is in the text behind its prompt; (0, 0) for tokens that are not of it."""
    behind = [(max(0, start - prompt_length), max(0, end - prompt_length)) for start, end in item.offsets or ()]
    return behind + [(0, 0)] * (len(item.input_ids) - len(behind))


@dataclass(slots=True)
class PlainTokens:
    """The tokens of one text, nothing added and nothing cut.

    Attributes:
        encodings: the library's results, one after the other; empty where nothing but ids is known.
        span: [start, end) of the text's own characters, where words of the model's stand around it; None for all.
    """

    ids: Sequence[int]
    encodings: tuple[Encoding, ...] = ()
    span: tuple[int, int] | None = None

    @classmethod
    def of(cls, encoding: Encoding, *, ids_only: bool) -> "PlainTokens":
        """All tokens of a text encoded without special tokens, those that the library cut off among them."""
        parts = (encoding, *encoding.overflowing)
        return cls(list(chain.from_iterable(part.ids for part in parts)), () if ids_only else parts)

    def every(self, name: str, kept: slice) -> list[Any]:
        """One attribute of the kept tokens, as `Encoding` has it; what is cut off is not read, as it may be long."""
        start, end, _ = kept.indices(len(self.ids))
        found, place = list[Any](), 0
        for part in self.encodings:
            if place < end and start < place + len(part):
                found += getattr(part, name)[max(0, start - place) : end - place]
            place += len(part)
        return found

    def encoding(self, kept: slice) -> KeptEncoding:
        """What the library says of the kept tokens; those without a character of the text's own count as special."""
        tokens, offsets, word_ids = (self.every(name, kept) for name in ("tokens", "offsets", "word_ids"))
        special = [0] * len(tokens)
        if self.span is not None:
            start, end = self.span
            for place, (first, last) in enumerate(offsets):
                if first < end and last > start:
                    offsets[place] = (max(first, start) - start, min(last, end) - start)
                else:
                    offsets[place], word_ids[place], special[place] = (0, 0), None, 1
        return KeptEncoding(tokens, offsets, word_ids, special)


@dataclass(frozen=True)
class RowTemplate:
    """A row's special tokens: those in front of each text, and those behind the last one.

    Attributes:
        text_types: the token type of each text's own tokens.
    """

    ids: list[list[int]]
    types: list[list[int]]
    names: list[list[str]]
    text_types: list[int]

    @classmethod
    def of(cls, made: Encoding, texts: int) -> "RowTemplate | None":
        """The template by which a row of one or two texts was made; None if they are not in their order."""
        gaps, types, end = [], [], 0
        for text in range(texts):
            places = [place for place, sequence in enumerate(made.sequence_ids) if sequence == text]
            if not places or places[0] < end:
                return None
            gaps.append(slice(end, places[0]))
            types.append(made.type_ids[places[0]])
            end = places[-1] + 1
        gaps.append(slice(end, None))
        ids, of_added, names = made.ids, made.type_ids, made.tokens
        return cls([ids[gap] for gap in gaps], [of_added[gap] for gap in gaps], [names[gap] for gap in gaps], types)

    @cached_property
    def num_added(self) -> int:
        """How many special tokens a row has."""
        return sum(map(len, self.ids))

    @cached_property
    def has_types(self) -> bool:
        """Whether any token has another type than 0."""
        return any(self.text_types) or any(map(any, self.types))

    def length(self, lengths: Sequence[int], kept: Sequence[slice]) -> int:
        """How many tokens a row of texts of these lengths has, of which these are kept."""
        parts = zip(lengths, kept, strict=True)
        return self.num_added + sum(len(range(*place.indices(length))) for length, place in parts)

    def join(self, texts: Sequence[PlainTokens], kept: Sequence[slice], sources: Sequence[str] = ()) -> TokenizedInput:
        """The row of these texts, of which these tokens are kept; `sources` are the texts, none for token ids."""
        parts = [text.ids[place] for text, place in zip(texts, kept, strict=True)]
        ids = _around(self.ids, parts)
        full_length = sum([len(text.ids) for text in texts], self.num_added)
        type_ids = segments = encoding = None
        if self.has_types:
            of_texts = [[kind] * len(part) for kind, part in zip(self.text_types, parts, strict=True)]
            type_ids = np.array(_around(self.types, of_texts), dtype=np.int64)
        found: list[KeptEncoding] = []
        if texts[0].encodings:
            found = [text.encoding(place) for text, place in zip(texts, kept, strict=True)]
            encoding = KeptEncoding(
                tokens=_around(self.names, [one.tokens for one in found]),
                offsets=self._filled((0, 0), [one.offsets for one in found]),
                word_ids=self._filled(None, [one.word_ids for one in found]),
                special_tokens_mask=self._filled(1, [one.special_tokens_mask for one in found]),
            )
        if len(texts) > 1:
            own = [[None if added else text for added in one.special_tokens_mask] for text, one in enumerate(found)]
            segments = self._filled(None, own or [[text] * len(part) for text, part in enumerate(parts)])
        return TokenizedInput(
            input_ids=np.array(ids, dtype=np.int64),
            truncated=len(ids) < full_length,
            full_length=full_length,
            encoding=encoding,
            type_ids=type_ids,
            sources=tuple(sources),
            segments=segments,
        )

    def _filled(self, filler: Any, parts: Sequence[Sequence[Any]]) -> list[Any]:
        """The parts, with `filler` for each special token."""
        return _around([[filler] * len(ids) for ids in self.ids], parts)


def _around(added: Sequence[Sequence[Any]], parts: Sequence[Sequence[Any]]) -> list[Any]:
    """The parts with the additions in front of each, and behind the last."""
    found = [*added[0]]
    for part, behind in zip(parts, added[1:], strict=True):
        found += part
        found += behind
    return found


class NoRoom(Exception):
    """Only one text of the row at `index` may be cut, and the other leaves no room for it."""

    index = 0


def cut_pairs(
    rows: Sequence[Sequence[int]],
    room: int,
    truncation: RowTruncation,
    *,
    most: Sequence[int | None] | None = None,
    from_start: bool,
) -> list[list[slice]]:
    """Which tokens of rows of two texts are kept: both at most `room`, each at most its own of `most`; else NoRoom."""
    kept = []
    for index, lengths in enumerate(rows):
        first, second = (
            length if limit is None else min(length, limit)
            for length, limit in zip(lengths, most or (None, None), strict=True)
        )
        try:
            shares = _share(first, second, room, truncation)
        except NoRoom as error:
            error.index = index
            raise
        sizes = zip(lengths, shares, (first, second), strict=True)
        kept.append([keep(length, min(share, own), from_start=from_start) for length, share, own in sizes])
    return kept


def keep(length: int, most: int, *, from_start: bool) -> slice:
    """Which of a text's tokens are kept, so that they are at most `most`."""
    if length <= most:
        return slice(None)
    return slice(length - most, None) if from_start else slice(most)


def _share(first: int, second: int, room: int, truncation: RowTruncation) -> tuple[int, int]:
    """How many tokens each of two texts may have.

    `longest_first` as the `tokenizers` library does it: the shorter text is kept whole where it takes less than half.
    """
    if truncation == "only_second":
        if first >= room:
            raise NoRoom(f"the first text has {first} tokens and leaves no room for the second: {room} fit in all")
        return first, room - first
    if truncation == "only_first":
        if second >= room:
            raise NoRoom(f"the second text has {second} tokens and leaves no room for the first: {room} fit in all")
        return room - second, second
    if truncation == "as_one":
        return min(first, room), max(0, room - first)
    shorter, longer = min(first, second), max(first, second)
    longer = min(longer, max(shorter, room - shorter))
    if shorter + longer > room:
        shorter, longer = room // 2, room - room // 2
    return (shorter, longer) if first <= second else (longer, shorter)


def expand(item: TokenizedInput, expansion: QueryExpansion) -> TokenizedInput:
    """A query with the expansion's token behind it, up to the expansion's length; a longer one as it is."""
    length = len(item.input_ids)
    missing = max(0, expansion.length - length)
    types = item.type_ids
    return replace(
        item,
        input_ids=np.concatenate([item.input_ids, np.full(missing, expansion.token_id, dtype=np.int64)]),
        type_ids=None if types is None else np.concatenate([types, np.zeros(missing, dtype=np.int64)]),
        seen=None if expansion.attend else length,
    )


def in_windows(source: str, text: PlainTokens, template: RowTemplate, room: int, overlap: int) -> TokenizedInput:
    """A text as windows of `room` tokens of its own, the last one shorter; its `input_ids` are of all of them.

    Neighbours share `overlap` tokens, at most half of a window's own.
    """
    overlap = min(overlap, room // 2)
    starts = range(0, max(1, len(text.ids) - overlap), room - overlap)
    windows = tuple(template.join([PlainTokens(text.ids[start : start + room])], [slice(None)]) for start in starts)
    input_ids = np.concatenate([window.input_ids for window in windows])
    return replace(
        template.join([text], [slice(None)], [source]),
        input_ids=input_ids,
        full_length=len(input_ids),
        windows=windows,
        window_starts=tuple(starts),
        added=(len(template.ids[0]), len(template.ids[-1])),
    )


def all_windows(tokenized: Sequence[TokenizedInput]) -> list[TokenizedInput]:
    """The windows of all texts, one after the other."""
    return [window for item in tokenized for window in item.windows]


def stitch(item: TokenizedInput, parts: Sequence[NDArray[Row]]) -> NDArray[Row]:
    """One row a token of a whole text, from the rows of its windows, each with the special tokens around it.

    Neighbouring windows share tokens. The first half of these is taken from the window before and the second from the
    one behind, so that a token's row comes from the window in which it has more of the text on both sides.
    """
    if len(parts) == 1:
        return parts[0]
    front, behind = item.added
    ends = [item.window_starts[place] + len(parts[place]) - front - behind for place in range(len(parts))]
    joined, start = [], 0
    for place, part in enumerate(parts):
        is_last = place == len(parts) - 1
        shared = 0 if is_last else ends[place] - item.window_starts[place + 1]
        end = ends[place] - (shared - shared // 2)
        offset = front - item.window_starts[place]
        joined.append(part[(0 if place == 0 else start + offset) : (len(part) if is_last else end + offset)])
        start = end
    return np.concatenate(joined)
