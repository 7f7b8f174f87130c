"""One row of token ids from one text or two: what the tokenizer's template puts around them, and what is cut.

Each text is tokenised by itself, so the query of a hundred documents is tokenised once. A row is the same as the
`tokenizers` library makes of the texts together. It knows no model and no requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from tokenizers import Encoding

from service.errors import TooLarge
from service.tokenization.tokenized import KeptEncoding, Offset, TokenizedInput

PairTruncation = Literal["longest_first", "only_second"]
"""Which text of a pair is cut, by the names of `transformers`: the longer one until both are as long, or the second."""

RowTruncation = PairTruncation | Literal["as_one"]
"""How rows are cut: also as if both texts were one, the second and, where it is gone, the first."""


SEPARATOR = "\n"
"""Between the two texts of a pair, where they are kept as one: no word of the first goes on in the second."""


@dataclass(frozen=True, slots=True)
class PlainTokens:
    """The tokens of one text, nothing added and nothing cut.

    Attributes:
        ids: in the vocabulary.
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
        """One attribute of the kept tokens, as `Encoding` has it."""
        return list(chain.from_iterable(getattr(part, name) for part in self.encodings))[kept]

    def is_own(self, kept: slice) -> list[bool]:
        """Of each kept token, whether it holds any of the text's own characters."""
        if self.span is None or not self.encodings:
            return [True] * len(self.ids[kept])
        start, end = self.span
        return [first < end and last > start for first, last in self.every("offsets", kept)]

    def offsets(self, kept: slice) -> list[Offset]:
        """Where each kept token stands in the text, as far as it does; (0, 0) for one that does not."""
        offsets: list[Offset] = self.every("offsets", kept)
        if self.span is None:
            return offsets
        start, end = self.span
        cut_to_text = [(max(first, start) - start, min(last, end) - start) for first, last in offsets]
        return [place if own else (0, 0) for place, own in zip(cut_to_text, self.is_own(kept), strict=True)]

    def words(self, kept: slice) -> list[int | None]:
        """The word that each kept token belongs to; None for one that is not of the text."""
        words = self.every("word_ids", kept)
        return [word if own else None for word, own in zip(words, self.is_own(kept), strict=True)]


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """Special tokens that stand together.

    Attributes:
        ids: in the vocabulary.
        types: their token types.
        names: their texts.
    """

    ids: tuple[int, ...]
    types: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, encoding: Encoding, place: slice) -> "AddedTokens":
        """Those at a place of a row."""
        return cls(tuple(encoding.ids[place]), tuple(encoding.type_ids[place]), tuple(encoding.tokens[place]))


@dataclass(frozen=True, slots=True)
class RowTemplate:
    """A row's special tokens, and the token type of each text.

    Attributes:
        added: in front of each text, and behind the last one.
        text_types: of each text's own tokens.
    """

    added: tuple[AddedTokens, ...]
    text_types: tuple[int, ...]

    @classmethod
    def of(cls, made: Encoding, texts: int) -> "RowTemplate | None":
        """The template by which a row of one or two texts was made; None where they do not stand in their order."""
        added, types, end = [], [], 0
        for text in range(texts):
            places = [place for place, sequence in enumerate(made.sequence_ids) if sequence == text]
            if not places or places[0] < end:
                return None
            added.append(AddedTokens.of(made, slice(end, places[0])))
            types.append(made.type_ids[places[0]])
            end = places[-1] + 1
        added.append(AddedTokens.of(made, slice(end, None)))
        return cls(tuple(added), tuple(types))

    @property
    def num_added(self) -> int:
        """How many special tokens a row has."""
        return sum(len(part.ids) for part in self.added)

    def join(
        self, texts: Sequence[PlainTokens], kept: Sequence[slice], sources: Sequence[str] | None = None
    ) -> TokenizedInput:
        """The row of these texts, of which these tokens are kept.

        Args:
            texts: their tokens.
            kept: of each text.
            sources: the texts themselves; None for token ids.
        """
        parts = [text.ids[place] for text, place in zip(texts, kept, strict=True)]
        ids = self._around([part.ids for part in self.added], parts)
        types = self._around(
            [part.types for part in self.added],
            [[kind] * len(part) for kind, part in zip(self.text_types, parts, strict=True)],
        )
        full_length = sum(len(text.ids) for text in texts) + self.num_added
        return TokenizedInput(
            input_ids=np.array(ids, dtype=np.int64),
            truncated=len(ids) < full_length,
            full_length=full_length,
            encoding=self._encoding(texts, kept) if all(text.encodings for text in texts) else None,
            type_ids=np.array(types, dtype=np.int64) if any(types) else None,
            text=None if sources is None else SEPARATOR.join(sources),
            second_start=0 if sources is None or len(sources) == 1 else len(sources[0]) + len(SEPARATOR),
            segments=self._segments(texts, kept) if len(parts) > 1 else None,
        )

    def _encoding(self, texts: Sequence[PlainTokens], kept: Sequence[slice]) -> KeptEncoding:
        parts = list(zip(texts, kept, strict=True))
        offsets, words = [text.offsets(place) for text, place in parts], [text.words(place) for text, place in parts]
        added = self.added
        return KeptEncoding(
            tokens=self._around([part.names for part in added], [text.every("tokens", place) for text, place in parts]),
            offsets=self._around([((0, 0),) * len(part.ids) for part in added], offsets),
            word_ids=self._around([(None,) * len(part.ids) for part in added], words),
            special_tokens_mask=self._around(
                [(1,) * len(part.ids) for part in added],
                [[int(not own) for own in text.is_own(place)] for text, place in parts],
            ),
        )

    def _segments(self, texts: Sequence[PlainTokens], kept: Sequence[slice]) -> list[int | None]:
        added = [(None,) * len(part.ids) for part in self.added]
        own = [text.is_own(place) for text, place in zip(texts, kept, strict=True)]
        return self._around(added, [[text if mine else None for mine in part] for text, part in enumerate(own)])

    @staticmethod
    def _around(added: Sequence[Sequence[Any]], parts: Sequence[Sequence[Any]]) -> list[Any]:
        """The parts with what was added in front of each, and behind the last."""
        found = [*added[0]]
        for part, behind in zip(parts, added[1:], strict=True):
            found += [*part, *behind]
        return found


def cut(
    lengths: Sequence[int],
    room: int,
    truncation: RowTruncation,
    *,
    most: Sequence[int | None] | None = None,
    from_start: bool = False,
) -> list[slice]:
    """Which tokens of one text or two are kept, so that all together are at most `room`.

    Args:
        lengths: tokens of each text.
        room: tokens that all may have.
        truncation: which of two is cut.
        most: tokens that each text may have; None for no limit.
        from_start: whether the start is cut off, not the end.

    Raises:
        TooLarge: only the second may be cut, and the first leaves no room for it.
    """
    limited = lengths if most is None else [_limit(length, at) for length, at in zip(lengths, most, strict=True)]
    shares = (min(room, limited[0]),) if len(lengths) == 1 else _share(limited[0], limited[1], room, truncation)
    return [
        _kept(length, min(share, limit), from_start=from_start)
        for length, share, limit in zip(lengths, shares, limited, strict=True)
    ]


def _share(first: int, second: int, room: int, truncation: RowTruncation) -> tuple[int, int]:
    """How many tokens each of two texts may have.

    `longest_first` as the `tokenizers` library does it: the shorter text is kept whole where it takes less than half.
    """
    if truncation == "only_second":
        if first >= room:
            raise TooLarge(f"the first text has {first} tokens and leaves no room for the second: {room} fit in all")
        return first, room - first
    if truncation == "as_one":
        return min(first, room), max(0, room - first)
    shorter, longer = min(first, second), max(first, second)
    longer = min(longer, max(shorter, room - shorter))
    if shorter + longer > room:
        shorter, longer = room // 2, room - room // 2
    return (shorter, longer) if first <= second else (longer, shorter)


def _limit(length: int, most: int | None) -> int:
    return length if most is None else min(length, most)


def _kept(length: int, most: int, *, from_start: bool) -> slice:
    if length <= most:
        return slice(None)
    return slice(length - most, None) if from_start else slice(most)
