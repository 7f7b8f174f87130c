"""Text to token ids, with the artifact's `tokenizer.json`; cut exactly where sentence-transformers cuts.

Single texts are cut by the tokenizers library itself (`longest_first`, stride 0, at the right end), set to the model's
longest input: it cuts the text and keeps the special tokens, as `transformers` does for `truncation=True,
max_length=N`. Where more is asked for (pairs, a cut at the start, windows), each text is tokenised once, put into the
tokenizer's template, and cut here. It knows neither requests nor limits other than that length.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as FastTokenizer

from model.artifact import PairWording
from service.errors import Invalid, Overloaded
from service.tokenization.plain_text import PlainText
from service.tokenization.queue import INLINE_CHARACTERS, Part, TokenizerQueue, without_panic
from service.tokenization.rows import (
    KeptEncoding,
    NoRoom,
    PairTruncation,
    PlainTokens,
    RowTemplate,
    RowTruncation,
    TokenizedInput,
    cut,
    in_windows,
)

MAX_FILE_BYTES = 256 << 20  # the largest vocabularies in use take about 35 MB
TEXT_CHARACTERS = 16  # a text costs at least as much as this many characters; 256 of one character take 4 to 10 ms
# In one call of the library, whose results hold all that was cut off: of 2,048 texts they took 260 MB at once.
IDS_A_CHARACTER = 4  # checking an id and copying it costs a quarter of a microsecond
TEXTS_AT_ONCE = 64
CHARACTERS_AT_ONCE = 16_384  # 4 to 20 ms; a longer text has a call of its own


class Tokenizer:
    """Tokenises short inputs on the calling thread and long ones on threads of its own, which have a queue.

    Every method that tokenises raises InternalError if the library panicked. Every asynchronous one also raises what
    `TokenizerQueue.run` does: Overloaded, DeadlineExceeded or NotReady.

    Attributes:
        max_sequence_length: tokens that the model takes, special tokens included.
        num_special_tokens: how many it adds to a text.
        special_ends: ids of the special tokens that begin and end every input; None for none.
        unknown_id: id for text without a token of its own; None for a tokenizer that needs none.
        marks_pieces: whether it marks tokens that go on with the word before them, as WordPiece does.
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
        tokenizer.enable_truncation(max_sequence_length, stride=0, strategy="longest_first", direction="right")
        self.max_sequence_length = max_sequence_length
        self.num_special_tokens = tokenizer.num_special_tokens_to_add(is_pair=False)
        self.special_ends = _special_ends(tokenizer)
        self.unknown_id = _unknown_id(tokenizer)
        self.marks_pieces = bool(getattr(tokenizer.model, "continuing_subword_prefix", None))
        self._tokenizer = tokenizer
        self._wording = pair_wording
        self._plain = PlainText.of(tokenizer)
        self._single_template = RowTemplate.of(tokenizer.encode("a"), 1)
        self._pair_template = RowTemplate.of(tokenizer.encode("a", "a"), 2)
        self._queue = TokenizerQueue(threads, max_delay=max_delay)

    @classmethod
    def load(
        cls,
        path: Path,
        max_sequence_length: int,
        *,
        threads: int,
        pair_wording: PairWording | None = None,
        max_delay: float = math.inf,
    ) -> "Tokenizer":
        """Reads a `tokenizer.json`.

        Args:
            path: of the file.
            max_sequence_length: tokens that the model takes.
            threads: for long texts.
            pair_wording: what the model reads around the texts of a pair; None for nothing.
            max_delay: seconds that long texts may have to wait, as of `TokenizerQueue`.

        Raises:
            ValueError: the file is no tokenizer or too large, or the length leaves no room for text.
        """
        tokenizer = _read(path)
        if max_sequence_length <= tokenizer.num_special_tokens_to_add(is_pair=False):
            raise ValueError(f"max_sequence_length {max_sequence_length} leaves no room for text; export it again")
        return cls(tokenizer, max_sequence_length, threads=threads, pair_wording=pair_wording, max_delay=max_delay)

    async def encode(
        self, texts: Sequence[str], *, ids_only: bool = False, deadline: float | None = None
    ) -> list[TokenizedInput]:
        """Tokenises texts, in their order; a text that is too long is cut.

        Args:
            texts: what to tokenise.
            ids_only: whether tokens and offsets can be left out, a fifth of the time.
            deadline: `time.monotonic()` value after which no one waits any more.
        """
        parts = _parts(texts, partial(self._encode, ids_only=ids_only))
        return await self._queue.run(parts, _concatenated, deadline)

    async def encode_windows(
        self, texts: Sequence[str], overlap: int = 0, *, ids_only: bool = True, deadline: float | None = None
    ) -> list[TokenizedInput]:
        """Tokenises texts of any length in windows.

        Args:
            texts: what to tokenise.
            overlap: tokens that neighbouring windows share; at most half of a window's.
            ids_only: as for `encode`.
            deadline: as for `encode`.

        Raises:
            Invalid: the tokenizer has no template to put around a window.
        """
        parts = _parts(list(dict.fromkeys(texts)), partial(self._plain_tokens, ids_only=ids_only))
        return await self._queue.run(parts, partial(self._windows, texts, overlap), deadline, joined=_characters(texts))

    async def encode_rows(
        self,
        rows: Sequence[Sequence[str]],
        *,
        truncation: PairTruncation = "longest_first",
        from_start: bool = False,
        most: Sequence[int | None] | None = None,
        check_lengths: Callable[[Sequence[int]], None] | None = None,
        ids_only: bool = False,
        deadline: float | None = None,
    ) -> list[TokenizedInput]:
        """Tokenises rows of one text or of two, each in the tokenizer's template; what is too long is cut.

        Args:
            rows: one or two texts each, as many in every row.
            truncation: which text of a pair is cut.
            from_start: whether a text's start is cut off, not its end.
            most: tokens that each text of a row may have, special tokens left out; None for no limit.
            check_lengths: given each row's tokens before rows are made, to refuse them: a long text may be in all rows.
            ids_only: as for `encode`.
            deadline: as for `encode`.

        Raises:
            Invalid: the tokenizer has no template for pairs.
            NoRoom: only the second text may be cut, and the first leaves no room for it.
        """
        size = len(rows[0]) if rows else 1
        template, wording = self._template(size), self._wording if size > 1 else None
        worded = rows if wording is None else wording.wrap(rows)
        distinct = list(dict.fromkeys(text for row in worded for text in row))
        parts = _parts(distinct, partial(self._plain_tokens, ids_only=ids_only))
        how: RowTruncation = "as_one" if wording is not None and truncation == "longest_first" else truncation
        cut_row = partial(self._cut, template=template, truncation=how, most=most, from_start=from_start)
        make = partial(self._rows, template=template, wording=wording, cut_row=cut_row, check_lengths=check_lengths)
        joined = sum(map(_characters, worded))
        return await self._queue.run(parts, partial(make, rows, worded), deadline, joined=joined)

    async def read_ids(
        self, ids: int, read: Callable[[], list[TokenizedInput]], deadline: float | None
    ) -> list[TokenizedInput]:
        """Reads rows of token ids, on a thread if they are many.

        Args:
            ids: how many ids and lists there are.
            read: returns the rows.
            deadline: as for `encode`.
        """
        return await self._queue.run([Part(max(1, ids // IDS_A_CHARACTER), read)], _concatenated, deadline)

    def join_ids(
        self, rows: Sequence[Sequence[Sequence[int]]], truncation: PairTruncation, *, from_start: bool
    ) -> list[TokenizedInput]:
        """Rows of pairs of token ids, given without special tokens.

        Raises:
            Invalid: the tokenizer has no template for pairs, or the model reads words around the texts, whose tokens
                depend on the text next to them.
            NoRoom: as for `encode_rows`.
        """
        if self._wording is not None:
            raise Invalid("pairs: this model reads words of its own around the texts; send texts, not token ids")
        template = self._template(2)
        made = []
        for index, row in enumerate(rows):
            kept = self._cut(index, [len(ids) for ids in row], template, truncation, from_start=from_start)
            made.append(template.join([PlainTokens(ids) for ids in row], kept))
        return made

    def encode_now(self, texts: Sequence[str], *, ids_only: bool = False) -> list[TokenizedInput]:
        """Tokenises texts on the calling thread."""
        parts = _parts(texts, partial(self._encode, ids_only=ids_only))
        return _concatenated([without_panic(part.tokenize) for part in parts])

    @property
    def waiting_characters(self) -> int:
        """Characters of long texts that wait for a thread."""
        return self._queue.characters

    def early_refusal(self, characters: int) -> Overloaded | None:
        """Why a request of this many characters would be refused before it is tokenised; None if it would not."""
        return self._queue.early_refusal(characters)

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

    def _encode(self, texts: Sequence[str], *, ids_only: bool) -> list[TokenizedInput]:
        """Tokenises few texts, or one long one.

        Short ones are not worth letting other threads have the interpreter. For long ones the library does that in
        `encode_batch` only: `encode` would hold up everything else for 0.16 s of a text of 131,072 characters.
        """
        is_short = sum(map(len, texts)) <= INLINE_CHARACTERS
        if not ids_only:
            found = map(self._tokenizer.encode, texts) if is_short else self._tokenizer.encode_batch(texts)
            return [self._tokenized(text, one, _kept(one)) for text, one in zip(texts, found, strict=True)]
        if self._plain is not None and is_short:
            return [self._plain.tokenize(text) or self._tokenized(text, *self._encode_fast([text])) for text in texts]
        return [self._tokenized(*pair) for pair in zip(texts, self._encode_fast(texts), strict=True)]

    def _encode_fast(self, texts: Sequence[str]) -> list[Encoding]:
        """Encodings of which only the ids are read."""
        if self._plain is None:
            return self._tokenizer.encode_batch_fast(texts)
        prepared = [self._plain.prepare(text) for text in texts]
        plain = iter(self._plain.encode([text for text in prepared if text is not None]))
        others = [text for text, plain_text in zip(texts, prepared, strict=True) if plain_text is None]
        rest = iter(self._tokenizer.encode_batch_fast(others) if others else ())
        return [next(rest if text is None else plain) for text in prepared]

    def _tokenized(self, text: str, encoding: Encoding, kept: Encoding | KeptEncoding | None = None) -> TokenizedInput:
        rest = encoding.overflowing
        return TokenizedInput(
            input_ids=np.array(encoding.ids, dtype=np.int64),
            truncated=bool(rest),
            full_length=len(encoding) + sum(len(part) - self.num_special_tokens for part in rest),
            encoding=kept,
            sources=(text,),
        )

    def _windows(self, texts: Sequence[str], overlap: int, found: list[dict[str, PlainTokens]]) -> list[TokenizedInput]:
        if self._single_template is None:
            raise Invalid("this model's tokenizer moves tokens about; its texts cannot be read in windows")
        plain = {text: tokens for part in found for text, tokens in part.items()}
        template, longest = self._single_template, self.max_sequence_length
        return [in_windows(text, plain[text], template, longest, overlap) for text in texts]

    def _rows(
        self,
        rows: Sequence[Sequence[str]],
        worded: Sequence[Sequence[str]],
        found: list[dict[str, PlainTokens]],
        *,
        template: RowTemplate,
        wording: PairWording | None,
        cut_row: Callable[[int, Sequence[int]], list[slice]],
        check_lengths: Callable[[Sequence[int]], None] | None,
    ) -> list[TokenizedInput]:
        """Rows of one text or of two. With words of the model's around a pair, it is cut as one text would be."""
        plain = {text: tokens for part in found for text, tokens in part.items()}
        lengths = [[len(plain[text].ids) for text in texts] for texts in worded]
        kept = [cut_row(index, own) for index, own in enumerate(lengths)]
        if check_lengths is not None:
            check_lengths([template.length(*both) for both in zip(lengths, kept, strict=True)])
        made = []
        for row, texts, places in zip(rows, worded, kept, strict=True):
            tokens = [plain[text] for text in texts]
            if wording is not None:
                tokens = [replace(own, span=span) for own, span in zip(tokens, wording.spans(row), strict=True)]
            made.append(template.join(tokens, places, row))
        return made

    def _plain_tokens(self, texts: Sequence[str], *, ids_only: bool) -> dict[str, PlainTokens]:
        """The tokens of few texts, or of one long one, nothing added and nothing cut."""
        plain: dict[str, PlainTokens] = {}
        if ids_only and self._plain is not None and sum(map(len, texts)) <= INLINE_CHARACTERS:
            ids = {text: self._plain.ids(text) for text in texts}
            plain = {text: PlainTokens(own) for text, own in ids.items() if own is not None}
        if rest := [text for text in texts if text not in plain]:
            encode = self._tokenizer.encode_batch_fast if ids_only else self._tokenizer.encode_batch
            found = [PlainTokens.of(one, ids_only=ids_only) for one in encode(rest, add_special_tokens=False)]
            plain.update(zip(rest, found, strict=True))
        return plain

    def _template(self, texts: int) -> RowTemplate:
        template = self._single_template if texts == 1 else self._pair_template
        if template is None:
            raise Invalid("this model's tokenizer has no template for pairs; send one text an input")
        return template

    def _cut(
        self,
        index: int,
        lengths: Sequence[int],
        template: RowTemplate,
        truncation: RowTruncation,
        *,
        most: Sequence[int | None] | None = None,
        from_start: bool,
    ) -> list[slice]:
        room = self.max_sequence_length - template.num_added
        try:
            return cut(lengths, room, truncation, most=most, from_start=from_start)
        except NoRoom as error:
            error.index = index
            raise


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


def _concatenated(found: list[list[TokenizedInput]]) -> list[TokenizedInput]:
    return found[0] if len(found) == 1 else [item for part in found for item in part]


def _kept(encoding: Encoding) -> Encoding | KeptEncoding:
    if not encoding.overflowing:
        return encoding
    return KeptEncoding(encoding.tokens, encoding.offsets, encoding.word_ids, encoding.special_tokens_mask)


def _read(path: Path) -> FastTokenizer:
    """A tokenizer that has tokenised something: some faults of a file show only then."""
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise ValueError(f"{path} has {size} bytes, at most {MAX_FILE_BYTES} are read")
    try:
        tokenizer = FastTokenizer.from_file(str(path))
        tokenizer.num_special_tokens_to_add(is_pair=False)
        tokenizer.encode("a")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and panics that are not even those
        raise ValueError(f"{path} is no tokenizer: {error}") from error
    return tokenizer


def _unknown_id(tokenizer: FastTokenizer) -> int | None:
    model = tokenizer.model
    if hasattr(model, "unk_token"):
        return None if model.unk_token is None else tokenizer.token_to_id(model.unk_token)
    found = model.tokenize("\U0010fffd")  # of no script: Unigram does not say which token it is
    return found[0].id if len(found) == 1 else None


def _special_ends(tokenizer: FastTokenizer) -> tuple[int | None, int | None]:
    """Ids of the special tokens that begin and end every input; None for none."""
    encoding = tokenizer.encode("a")
    ends = [one if special else None for one, special in zip(encoding.ids, encoding.special_tokens_mask, strict=True)]
    return (ends[0], ends[-1]) if ends else (None, None)
