"""Text to token ids, with the artifact's `tokenizer.json`; cut exactly where sentence-transformers cuts.

Truncation is the tokenizers library's own (`longest_first`, stride 0, at the right end), set to the model's longest
input: it cuts the text and keeps the special tokens, as `transformers` does for `truncation=True, max_length=N`.
It knows neither requests nor limits other than that length.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as FastTokenizer

from service.errors import Invalid
from service.tokenization.loading import read_tokenizer, special_ends
from service.tokenization.plain_text import PlainText
from service.tokenization.rows import PairTruncation, PlainTokens, RowTemplate, cut
from service.tokenization.threads import TokenizerThreads, without_panic
from service.tokenization.tokenized import KeptEncoding, TokenizedInput
from service.tokenization.windows import in_windows

TEXT_CHARACTERS = 16  # a text costs at least as much as so many characters; 256 of one character take 4 to 10 ms
TEXTS_AT_ONCE = 64  # the library's results hold all that was cut off: of 2,048 texts they took 260 MB at once


class Tokenizer:
    """Tokenises short inputs on the calling thread and long ones on threads of its own.

    Attributes:
        max_sequence_length: tokens that the model takes, special tokens included.
        num_special_tokens: how many it adds to a text.
        special_ends: ids of the special tokens that begin and end every input; None where there is none.
    """

    def __init__(self, tokenizer: FastTokenizer, max_sequence_length: int, *, threads: int) -> None:
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_sequence_length, stride=0, strategy="longest_first", direction="right")
        self._tokenizer = tokenizer
        self._plain = PlainText.of(tokenizer)
        self._single = RowTemplate.of(tokenizer.encode("a"), 1)
        self._pair = RowTemplate.of(tokenizer.encode("a", "a"), 2)
        self.num_special_tokens = tokenizer.num_special_tokens_to_add(is_pair=False)
        self.special_ends = special_ends(tokenizer)
        self._threads = TokenizerThreads(threads)
        self.max_sequence_length = max_sequence_length

    @classmethod
    def load(cls, path: Path, max_sequence_length: int, *, threads: int) -> "Tokenizer":
        """Reads a `tokenizer.json`.

        Raises:
            ValueError: the file is no tokenizer or too large, or the length leaves no room for text.
        """
        tokenizer = read_tokenizer(path)
        if max_sequence_length <= tokenizer.num_special_tokens_to_add(is_pair=False):
            raise ValueError(f"max_sequence_length {max_sequence_length} leaves no room for text; export it again")
        return cls(tokenizer, max_sequence_length, threads=threads)

    async def encode(
        self, texts: Sequence[str], *, ids_only: bool = False, deadline: float | None = None
    ) -> list[TokenizedInput]:
        """Tokenises texts, in their order; a text that is too long is cut.

        Args:
            texts: what to tokenise.
            ids_only: whether tokens and offsets can be left out, a fifth of the time.
            deadline: `time.monotonic()` value after which nobody waits any more.

        Raises:
            InternalError: the library panicked.
            NotReady: closed.
            DeadlineExceeded: the deadline passed; what no thread had begun with is dropped.
        """
        cost = sum(map(len, texts)) + TEXT_CHARACTERS * (len(texts) - 1)
        return await self._threads.run(partial(self.encode_now, texts, ids_only=ids_only), cost, deadline)

    async def encode_windows(self, texts: Sequence[str], *, deadline: float | None = None) -> list[TokenizedInput]:
        """Tokenises texts of any length in windows; ids only.

        Raises:
            InternalError, NotReady, DeadlineExceeded: as for `encode`.
        """
        cost = sum(map(len, texts)) + TEXT_CHARACTERS * (len(texts) - 1)
        return await self._threads.run(partial(self._encode_windows, texts), cost, deadline)

    async def encode_rows(
        self,
        rows: Sequence[Sequence[str]],
        *,
        truncation: PairTruncation = "longest_first",
        from_start: bool = False,
        most: Sequence[int | None] | None = None,
        ids_only: bool = False,
        deadline: float | None = None,
    ) -> list[TokenizedInput]:
        """Tokenises rows of one text or of two, each in the tokenizer's template; what is too long is cut.

        Args:
            rows: one or two texts each, as many in every row.
            truncation: which text of a pair is cut.
            from_start: whether a text's start is cut off, not its end.
            most: tokens that each text of a row may have, special tokens left out; None for no limit.
            ids_only: as for `encode`.
            deadline: as for `encode`.

        Raises:
            Invalid: the tokenizer has no template for pairs.
            TooLarge: only the second text may be cut, and the first leaves no room for it.
            InternalError, NotReady, DeadlineExceeded: as for `encode`.
        """
        tokenize = partial(self._encode_rows, rows, truncation, from_start, ids_only, most)
        cost = sum(sum(map(len, row)) for row in rows) + TEXT_CHARACTERS * (2 * len(rows) - 1)
        return await self._threads.run(tokenize, cost, deadline)

    def join_ids(
        self, rows: Sequence[Sequence[Sequence[int]]], truncation: PairTruncation, *, from_start: bool
    ) -> list[TokenizedInput]:
        """Rows of pairs of token ids, given without special tokens; errors are those of `encode_rows`."""
        return [self._row([PlainTokens(ids) for ids in row], truncation, from_start) for row in rows]

    def encode_now(self, texts: Sequence[str], *, ids_only: bool = False) -> list[TokenizedInput]:
        """Tokenises texts on the calling thread.

        Raises:
            InternalError: the library panicked.
        """
        return without_panic(partial(self._encode, texts, ids_only=ids_only))

    def _encode(self, texts: Sequence[str], *, ids_only: bool) -> list[TokenizedInput]:
        if not ids_only:
            return [self._with_tokens(text) for text in texts]
        found: list[TokenizedInput] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = texts[start : start + TEXTS_AT_ONCE]
            encodings = self._encode_fast(part)
            found += [self._tokenized(text, encoding, None) for text, encoding in zip(part, encodings, strict=True)]
        return found

    def _encode_rows(
        self,
        rows: Sequence[Sequence[str]],
        truncation: PairTruncation,
        from_start: bool,
        ids_only: bool,
        most: Sequence[int | None] | None,
    ) -> list[TokenizedInput]:
        plain = self._plain_tokens([text for row in rows for text in row], ids_only=ids_only)
        return [self._row([plain[text] for text in row], truncation, from_start, row, most) for row in rows]

    def _encode_windows(self, texts: Sequence[str]) -> list[TokenizedInput]:
        if self._single is None:
            raise Invalid("this model's tokenizer moves tokens about; its texts cannot be read in windows")
        plain = self._plain_tokens(texts, ids_only=True)
        return [in_windows(plain[text], self._single, self.max_sequence_length) for text in texts]

    def _plain_tokens(self, given: Sequence[str], *, ids_only: bool) -> dict[str, PlainTokens]:
        """The tokens of each text, nothing added and nothing cut."""
        texts, plain = list(dict.fromkeys(given)), dict[str, PlainTokens]()
        encode = self._tokenizer.encode_batch_fast if ids_only else self._tokenizer.encode_batch
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = texts[start : start + TEXTS_AT_ONCE]
            found = encode(part, add_special_tokens=False)
            tokens = [PlainTokens.of(encoding, ids_only=ids_only) for encoding in found]
            plain.update(zip(part, tokens, strict=True))
        return plain

    def _row(
        self,
        texts: Sequence[PlainTokens],
        truncation: PairTruncation,
        from_start: bool,
        sources: Sequence[str] | None = None,
        most: Sequence[int | None] | None = None,
    ) -> TokenizedInput:
        template = self._single if len(texts) == 1 else self._pair
        if template is None:
            raise Invalid("this model's tokenizer has no template for pairs; send one text an input")
        room = self.max_sequence_length - template.num_added
        lengths = [len(text.ids) for text in texts]
        kept = cut(lengths, room, truncation, most=most, from_start=from_start)
        return template.join(texts, kept, sources)

    def _with_tokens(self, text: str) -> TokenizedInput:
        encoding = self._tokenizer.encode(text)
        return self._tokenized(text, encoding, _kept(encoding) if encoding.overflowing else encoding)

    def _encode_fast(self, texts: Sequence[str]) -> list[Encoding]:
        """Encodings of which only the ids are read."""
        if self._plain is None:
            return self._tokenizer.encode_batch_fast(texts)
        prepared = [self._plain.prepare(text) for text in texts]
        plain = iter(self._plain.encode([text for text in prepared if text is not None]))
        others = [text for text, plain_text in zip(texts, prepared, strict=True) if plain_text is None]
        rest = iter(self._tokenizer.encode_batch_fast(others) if others else ())
        return [next(rest if text is None else plain) for text in prepared]

    def tokens(self, tokenized: TokenizedInput) -> list[str]:
        """The tokens' texts; an id that the vocabulary has no text for reads `<id>`."""
        if tokenized.encoding is not None:
            return tokenized.encoding.tokens
        return [self._tokenizer.id_to_token(token_id) or f"<{token_id}>" for token_id in tokenized.input_ids.tolist()]

    def close(self) -> None:
        """Ends the threads without waiting for them."""
        self._threads.close()

    def _tokenized(self, text: str, encoding: Encoding, kept: Encoding | KeptEncoding | None) -> TokenizedInput:
        rest = encoding.overflowing
        length = len(encoding)
        return TokenizedInput(
            input_ids=np.array(encoding.ids, dtype=np.int64),
            truncated=bool(rest),
            full_length=length + sum(len(part) - self.num_special_tokens for part in rest),
            encoding=kept,
            text=text,
        )


def _kept(encoding: Encoding) -> KeptEncoding:
    return KeptEncoding(encoding.tokens, encoding.offsets, encoding.word_ids, encoding.special_tokens_mask)
