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

from model.pair_wording import PairWording
from service.tokenization.loading import read_tokenizer, special_ends
from service.tokenization.plain_text import PlainText
from service.tokenization.row_encoder import TEXTS_AT_ONCE, RowEncoder, RowOptions
from service.tokenization.rows import PairTruncation
from service.tokenization.threads import INLINE_CHARACTERS, TokenizerThreads, without_panic
from service.tokenization.tokenized import KeptEncoding, TokenizedInput

TEXT_CHARACTERS = 16  # a text costs at least as much as so many characters; 256 of one character take 4 to 10 ms


class Tokenizer:
    """Tokenises short inputs on the calling thread and long ones on threads of its own.

    Attributes:
        max_sequence_length: tokens that the model takes, special tokens included.
        num_special_tokens: how many it adds to a text.
        special_ends: ids of the special tokens that begin and end every input; None where there is none.
    """

    def __init__(
        self,
        tokenizer: FastTokenizer,
        max_sequence_length: int,
        *,
        threads: int,
        pair_wording: PairWording | None = None,
    ) -> None:
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_sequence_length, stride=0, strategy="longest_first", direction="right")
        self._tokenizer = tokenizer
        self._plain = PlainText.of(tokenizer)
        self._rows = RowEncoder(tokenizer, max_sequence_length, pair_wording, self._plain)
        self.num_special_tokens = tokenizer.num_special_tokens_to_add(is_pair=False)
        self.special_ends = special_ends(tokenizer)
        self._threads = TokenizerThreads(threads)
        self.max_sequence_length = max_sequence_length

    @classmethod
    def load(
        cls, path: Path, max_sequence_length: int, *, threads: int, pair_wording: PairWording | None = None
    ) -> "Tokenizer":
        """Reads a `tokenizer.json`.

        Args:
            path: of the file.
            max_sequence_length: tokens that the model takes.
            threads: for long texts.
            pair_wording: what the model reads around the texts of a pair; None for nothing.

        Raises:
            ValueError: the file is no tokenizer or too large, or the length leaves no room for text.
        """
        tokenizer = read_tokenizer(path)
        if max_sequence_length <= tokenizer.num_special_tokens_to_add(is_pair=False):
            raise ValueError(f"max_sequence_length {max_sequence_length} leaves no room for text; export it again")
        return cls(tokenizer, max_sequence_length, threads=threads, pair_wording=pair_wording)

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
        return await self._threads.run(partial(self._rows.encode_windows, texts), cost, deadline)

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
        how = RowOptions(truncation, from_start=from_start, most=most)
        tokenize = partial(self._rows.encode, rows, how, ids_only=ids_only)
        cost = sum(sum(map(len, row)) for row in rows) + TEXT_CHARACTERS * (2 * len(rows) - 1)
        return await self._threads.run(tokenize, cost, deadline)

    def join_ids(
        self, rows: Sequence[Sequence[Sequence[int]]], truncation: PairTruncation, *, from_start: bool
    ) -> list[TokenizedInput]:
        """Rows of pairs of token ids, given without special tokens; errors are those of `encode_rows`.

        Raises:
            Invalid: the model reads words around the texts too.
        """
        return self._rows.join_ids(rows, RowOptions(truncation, from_start=from_start))

    def encode_now(self, texts: Sequence[str], *, ids_only: bool = False) -> list[TokenizedInput]:
        """Tokenises texts on the calling thread.

        Raises:
            InternalError: the library panicked.
        """
        return without_panic(partial(self._encode, texts, ids_only=ids_only))

    def _encode(self, texts: Sequence[str], *, ids_only: bool) -> list[TokenizedInput]:
        if not ids_only:
            return [self._with_tokens(text) for text in texts]
        if self._plain is not None and sum(map(len, texts)) <= INLINE_CHARACTERS:
            return [self._short(text, self._plain) for text in texts]
        found: list[TokenizedInput] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = texts[start : start + TEXTS_AT_ONCE]
            encodings = self._encode_fast(part)
            found += [self._tokenized(text, encoding, None) for text, encoding in zip(part, encodings, strict=True)]
        return found

    def _short(self, text: str, plain: PlainText) -> TokenizedInput:
        """Ids of a text that is tokenised where it is."""
        plain_text = plain.tokenize(text)
        if plain_text is not None:
            return plain_text
        (encoding,) = self._tokenizer.encode_batch_fast([text])
        return self._tokenized(text, encoding, None)

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
