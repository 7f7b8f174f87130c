"""Text to token ids, with the artifact's `tokenizer.json`; cut exactly where sentence-transformers cuts.

Each text is tokenised once, cut here, and put into the tokenizer's template: as `transformers` does for
`truncation=True, max_length=N`, and for what else is asked for (pairs, a cut at the start, windows). It knows neither
requests nor limits other than that length.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer as FastTokenizer

from model.artifact import PairWording
from service.batching.work_queue import Part, WorkQueue
from service.errors import DeadlineExceeded, InternalError, Invalid, Overloaded
from service.machine import trim_heap
from service.tokenization.plain_text import PlainText
from service.tokenization.rows import (
    PairTruncation,
    PlainTokens,
    RowTemplate,
    RowTruncation,
    TokenizedInput,
    cut_pairs,
    in_windows,
    keep,
)

RARE = "a \ua66e"  # in few vocabularies, so that it becomes the unknown token
MAX_FILE_BYTES = 256 << 20  # the largest vocabularies in use take about 35 MB
# Up to here a thread hand-off costs more than it frees the event loop for: about a millisecond of tokenising.
INLINE_CHARACTERS = 4096
TEXT_CHARACTERS = 16  # a text costs at least as much as this many characters; 256 of one character take 4 to 10 ms
IDS_A_CHARACTER = 4  # checking an id and copying it costs a quarter of a microsecond
# In one call of the library, whose results hold all that was cut off: of 2,048 texts they took 260 MB at once.
TEXTS_AT_ONCE = 64
CHARACTERS_AT_ONCE = 16_384  # 4 to 20 ms; a longer text has a call of its own
# glibc keeps what the library freed, up to 800 bytes a character. It is returned after this many characters, if none
# wait, or after this many seconds. A trim takes some milliseconds.
_TRIM_CHARACTERS, _TRIM_SECONDS = 131_072, 1.0

T = TypeVar("T")


class Tokenizer:
    """Tokenises short inputs on the calling thread and long ones on threads of its own, which have a queue.

    Every method that tokenises raises InternalError if the library panicked. Every asynchronous one also raises what
    `WorkQueue.run` does: Overloaded, DeadlineExceeded or NotReady.

    Long texts share `threads`, and may have to wait for `max_delay` seconds. `pair_wording` is what the model reads
    around the texts of a pair.

    Attributes:
        max_sequence_length: tokens that the model takes, special tokens included.
        num_special_tokens: how many it adds to a text.
        special_ends: ids of the special tokens that begin and end every input; None for none.
        unknown_id: id for text without a token of its own; None for a tokenizer that needs none.
        marks_pieces: whether it marks tokens that go on with the word before them, as WordPiece does.

    Raises:
        ValueError: the length leaves no room for text, or the tokenizer has no token for a letter.
    """

    def __init__(
        self,
        tokenizer: FastTokenizer,
        max_sequence_length: int,
        *,
        threads: int,
        pair_wording: PairWording | None = None,
        max_delay: float = math.inf,
    ) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        template = RowTemplate.of(tokenizer.encode("a"), 1)
        self._pair_template = RowTemplate.of(tokenizer.encode("a", "a"), 2)
        if template is None:
            raise ValueError("the tokenizer has no token for a letter")
        if max_sequence_length <= template.num_added:
            raise ValueError(f"max_sequence_length {max_sequence_length} leaves no room for text; export it again")
        self.max_sequence_length = max_sequence_length
        self.num_special_tokens = template.num_added
        front, behind = template.ids
        self.special_ends = front[0] if front else None, behind[-1] if behind else None
        self.unknown_id = _unknown_id(tokenizer)
        self.marks_pieces = bool(getattr(tokenizer.model, "continuing_subword_prefix", None))
        tokenizer.enable_truncation(max_sequence_length)  # only bounds the parts in which its results are read
        self._tokenizer = tokenizer
        self._wording = pair_wording
        self._plain = PlainText.of(tokenizer)
        self._template = template
        self._queue = WorkQueue("tokenize", threads, max_delay=max_delay, after_part=self._trim)
        self._trimmed_at, self._untrimmed = time.monotonic(), 0

    @classmethod
    def load(cls, path: Path, max_sequence_length: int, **options: Any) -> "Tokenizer":
        """Reads a `tokenizer.json`; options are those of the tokenizer.

        Raises:
            ValueError: the file is no tokenizer or too large, or as of the tokenizer.
        """
        if (size := path.stat().st_size) > MAX_FILE_BYTES:
            raise ValueError(f"{path} has {size} bytes, at most {MAX_FILE_BYTES} are read")
        try:
            tokenizer = FastTokenizer.from_file(str(path))
            tokenizer.num_special_tokens_to_add(is_pair=False)
            tokenizer.encode(RARE)  # some faults of a file show only then
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises bare Exceptions, and panics that are not even those
            raise ValueError(f"{path} is no tokenizer: {error}") from error
        return cls(tokenizer, max_sequence_length, **options)

    async def encode(
        self,
        texts: Sequence[str],
        *,
        from_start: bool = False,
        most: int | None = None,
        ids_only: bool = False,
        deadline: float | None = None,
    ) -> list[TokenizedInput]:
        """Tokenises texts, in their order; one that is too long, or has more than `most` tokens of its own, is cut."""
        parts = _parts(texts, partial(self._encode, from_start=from_start, most=most, ids_only=ids_only))
        return await self._run(parts, _concatenated, deadline)

    async def encode_windows(
        self, texts: Sequence[str], overlap: int = 0, *, ids_only: bool = True, deadline: float | None = None
    ) -> list[TokenizedInput]:
        """Tokenises texts of any length in windows; neighbours share `overlap` tokens, at most half of a window's."""

        def join(found: list[list[PlainTokens]]) -> list[TokenizedInput]:
            plain = dict(zip(distinct, _concatenated(found), strict=True))
            room = self._room(self._template)
            return [in_windows(text, plain[text], self._template, room, overlap) for text in texts]

        distinct = list(dict.fromkeys(texts))
        parts = _parts(distinct, partial(self._plain_tokens, ids_only=ids_only))
        return await self._run(parts, join, deadline, joined=_characters(texts))

    async def encode_pairs(
        self,
        pairs: Sequence[Sequence[str]],
        *,
        truncation: PairTruncation = "longest_first",
        from_start: bool = False,
        most: Sequence[int | None] | None = None,
        check_lengths: Callable[[Sequence[int]], None] | None = None,
        ids_only: bool = False,
        deadline: float | None = None,
    ) -> list[TokenizedInput]:
        """Tokenises rows of two texts, each in the tokenizer's template; what is too long is cut.

        `check_lengths` is given each row's tokens before rows are made, to refuse them: a long text may be in all rows.

        Raises:
            Invalid: the tokenizer has no template for pairs.
            NoRoom: only the second text may be cut, and the first leaves no room for it.
        """
        template, wording = self._check_pairs(), self._wording
        worded = pairs if wording is None else wording.wrap(pairs)
        distinct = list(dict.fromkeys(text for row in worded for text in row))
        # With words of the model's around a pair, it is cut as one text would be.
        way: RowTruncation = "as_one" if wording is not None and truncation == "longest_first" else truncation

        def join(found: list[list[PlainTokens]]) -> list[TokenizedInput]:
            plain = dict(zip(distinct, _concatenated(found), strict=True))
            lengths = [[len(plain[text].ids) for text in texts] for texts in worded]
            kept = cut_pairs(lengths, self._room(template), way, most=most, from_start=from_start)
            if check_lengths is not None:
                check_lengths([template.length(*both) for both in zip(lengths, kept, strict=True)])
            made = []
            for row, texts, places in zip(pairs, worded, kept, strict=True):
                tokens = [plain[text] for text in texts]
                if wording is not None:
                    tokens = [replace(own, span=span) for own, span in zip(tokens, wording.spans(row), strict=True)]
                made.append(template.join(tokens, places, row))
            return made

        parts = _parts(distinct, partial(self._plain_tokens, ids_only=ids_only))
        return await self._run(parts, join, deadline, joined=sum(map(_characters, worded)))

    async def read_ids(
        self, ids: int, read: Callable[[], list[TokenizedInput]], deadline: float | None
    ) -> list[TokenizedInput]:
        """What `read` returns of token ids, called on a thread if there are many ids and lists."""
        return await self._run([Part(max(1, ids // IDS_A_CHARACTER), read)], _concatenated, deadline)

    def join_ids(
        self, rows: Sequence[Sequence[Sequence[int]]], truncation: PairTruncation, *, from_start: bool
    ) -> list[TokenizedInput]:
        """Rows of pairs of token ids, given without special tokens.

        Raises:
            Invalid: the tokenizer has no template for pairs, or the model reads words around the texts, whose tokens
                depend on the text next to them.
            NoRoom: as for `encode_pairs`.
        """
        if self._wording is not None:
            raise Invalid("pairs: this model reads words of its own around the texts; send texts, not token ids")
        template = self._check_pairs()
        lengths = [[len(ids) for ids in row] for row in rows]
        kept = cut_pairs(lengths, self._room(template), truncation, from_start=from_start)
        return [template.join(list(map(PlainTokens, row)), own) for row, own in zip(rows, kept, strict=True)]

    def encode_now(self, texts: Sequence[str], *, ids_only: bool = False) -> list[TokenizedInput]:
        """Tokenises texts on the calling thread."""
        return _concatenated(_done(_parts(texts, partial(self._encode, ids_only=ids_only))))

    @property
    def waiting_characters(self) -> int:
        """Characters of long texts that wait for a thread."""
        return self._queue.waiting

    def early_refusal(self, characters: int) -> Overloaded | None:
        """Why a request of this many characters would be refused before it is tokenised; None if it would not."""
        return self._queue.early_refusal(characters) if characters > INLINE_CHARACTERS else None

    def tokens(self, tokenized: TokenizedInput) -> list[str]:
        """The tokens' texts; an id that the vocabulary has no text for reads `<id>`."""
        known = [] if tokenized.encoding is None else tokenized.encoding.tokens
        return [*known, *map(self.token, tokenized.input_ids[len(known) :].tolist())]

    def token(self, token_id: int) -> str:
        """A token's text in the vocabulary; an id that it has no text for reads `<id>`."""
        return self._tokenizer.id_to_token(token_id) or f"<{token_id}>"

    def join(self, tokens: Sequence[str]) -> str:
        """Tokens' texts as one, as `transformers` writes them."""
        decoder = self._tokenizer.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(list(tokens)))

    def close(self) -> None:
        """Ends the threads without waiting for them."""
        self._queue.close()

    async def _run(
        self, parts: Sequence[Part], join: Callable[[list[Any]], T], deadline: float | None, *, joined: int = 0
    ) -> T:
        """Short work at once, long work through the queue; `joined` is what `join` costs, in characters."""
        if max(joined, sum(part.cost for part in parts)) > INLINE_CHARACTERS:
            return await self._queue.run(parts, join, deadline)
        if deadline is not None and deadline <= time.monotonic():
            raise DeadlineExceeded()
        return join(_done(parts))

    def _encode(
        self, texts: Sequence[str], *, from_start: bool = False, most: int | None = None, ids_only: bool
    ) -> list[TokenizedInput]:
        """Rows of few texts, or of one long one."""
        template, made = self._template, []
        limit = self._room(template)
        room = limit if most is None else min(limit, most)
        for text, tokens in zip(texts, self._plain_tokens(texts, ids_only=ids_only), strict=True):
            made.append(template.join([tokens], [keep(len(tokens.ids), room, from_start=from_start)], (text,)))
        return made

    def _plain_tokens(self, texts: Sequence[str], *, ids_only: bool) -> list[PlainTokens]:
        """The tokens of few texts, or of one long one, nothing added and nothing cut.

        Short ones are not worth letting other threads have the interpreter. For long ones the library does that in
        `encode_batch` only: `encode` would hold up everything else for 0.16 s of a text of 131,072 characters.
        """
        are_short = sum(map(len, texts)) <= INLINE_CHARACTERS
        ids: Sequence[list[int] | None] = [None] * len(texts)
        if ids_only and self._plain is not None:
            ids = self._plain.ids(texts, are_short=are_short)
        rest = [text for text, own in zip(texts, ids, strict=True) if own is None]
        if ids_only:
            encodings = self._tokenizer.encode_batch_fast(rest, add_special_tokens=False) if rest else []
        elif are_short:
            encodings = [self._tokenizer.encode(text, add_special_tokens=False) for text in rest]
        else:
            encodings = self._tokenizer.encode_batch(rest, add_special_tokens=False)
        others = iter(encodings)
        return [PlainTokens.of(next(others), ids_only=ids_only) if own is None else PlainTokens(own) for own in ids]

    def _check_pairs(self) -> RowTemplate:
        if self._pair_template is None:
            raise Invalid("this model's tokenizer has no template for pairs; send one text an input")
        return self._pair_template

    def _room(self, template: RowTemplate) -> int:
        """How many tokens of texts a row may have."""
        return self.max_sequence_length - template.num_added

    def _trim(self, characters: int) -> None:
        self._untrimmed += characters
        is_due = not self._queue.waiting or time.monotonic() - self._trimmed_at >= _TRIM_SECONDS
        if self._untrimmed >= _TRIM_CHARACTERS and is_due:
            self._trimmed_at, self._untrimmed = time.monotonic(), 0
            trim_heap()


def _characters(texts: Sequence[str]) -> int:
    """What reading these texts costs, in characters."""
    return sum(len(text) + TEXT_CHARACTERS for text in texts)


def _parts(texts: Sequence[str], tokenize: Callable[[Sequence[str]], Any]) -> list[Part]:
    """Texts in calls of the library, a bounded number of texts and characters each; a long text is a call by itself."""
    parts: list[Part] = []
    start, cost = 0, 0
    for index, text in enumerate(texts):
        own = len(text) + TEXT_CHARACTERS
        if index > start and (cost + own > CHARACTERS_AT_ONCE or index - start == TEXTS_AT_ONCE):
            parts.append(Part(cost, partial(tokenize, texts[start:index])))
            start, cost = index, 0
        cost += own
    if texts:
        parts.append(Part(cost, partial(tokenize, texts[start:])))
    return parts


def _concatenated(found: list[list[T]]) -> list[T]:
    return found[0] if len(found) == 1 else [item for part in found for item in part]


def _done(parts: Sequence[Part]) -> list[Any]:
    """What the parts give, done on the calling thread."""
    try:
        return [part.work() for part in parts]
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as panic:  # of the library's Rust code; it may quote the text, so it is not shown
        raise InternalError() from panic


def _unknown_id(tokenizer: FastTokenizer) -> int | None:
    model = tokenizer.model
    if hasattr(model, "unk_token"):
        return None if model.unk_token is None else tokenizer.token_to_id(model.unk_token)
    found = model.tokenize("\U0010fffd")  # of no script: Unigram does not say which token it is
    return found[0].id if len(found) == 1 else None
