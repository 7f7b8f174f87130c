"""Rows of one text or two: each text tokenised once, put into the tokenizer's template, cut to what the model takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenizers import Tokenizer as FastTokenizer

from model.pair_wording import PairWording
from service.errors import Invalid
from service.tokenization.plain_text import PlainText
from service.tokenization.rows import PairTruncation, PlainTokens, RowTemplate, RowTruncation, cut
from service.tokenization.threads import INLINE_CHARACTERS
from service.tokenization.tokenized import TokenizedInput
from service.tokenization.windows import in_windows

TEXTS_AT_ONCE = 64  # the library's results hold all that was cut off: of 2,048 texts they took 260 MB at once


@dataclass(frozen=True, slots=True)
class RowOptions:
    """What is cut off a row that is too long.

    Attributes:
        truncation: which text of a pair is cut.
        from_start: whether a text's start is cut off, not its end.
        most: tokens that each text of a row may have, special tokens left out; None for no limit.
    """

    truncation: PairTruncation = "longest_first"
    from_start: bool = False
    most: Sequence[int | None] | None = None


class RowEncoder:
    """Makes rows on the calling thread."""

    def __init__(
        self, tokenizer: FastTokenizer, longest: int, wording: PairWording | None, plain: PlainText | None
    ) -> None:
        """Reads the templates.

        Args:
            tokenizer: the artifact's.
            longest: tokens that the model takes, special tokens included.
            wording: what the model reads around the texts of a pair; None for nothing.
            plain: a shorter way for some texts; None for none.
        """
        self._tokenizer = tokenizer
        self._plain_text = plain
        self._longest = longest
        self._wording = wording
        self._single = RowTemplate.of(tokenizer.encode("a"), 1)
        self._pair = RowTemplate.of(tokenizer.encode("a", "a"), 2)

    def encode(self, rows: Sequence[Sequence[str]], options: RowOptions, *, ids_only: bool) -> list[TokenizedInput]:
        """Rows of one text or of two, as many in every row."""
        if self._wording is not None and rows and len(rows[0]) > 1:
            return self._encode_worded(rows, self._wording, options, ids_only=ids_only)
        plain = self._plain_tokens([text for row in rows for text in row], ids_only=ids_only)
        return [self._row([plain[text] for text in row], options, row) for row in rows]

    def encode_windows(self, texts: Sequence[str]) -> list[TokenizedInput]:
        """Texts of any length in windows; ids only."""
        if self._single is None:
            raise Invalid("this model's tokenizer moves tokens about; its texts cannot be read in windows")
        plain = self._plain_tokens(texts, ids_only=True)
        return [in_windows(plain[text], self._single, self._longest) for text in texts]

    def join_ids(self, rows: Sequence[Sequence[Sequence[int]]], options: RowOptions) -> list[TokenizedInput]:
        """Rows of pairs of token ids.

        Raises:
            Invalid: the model reads words around the texts, whose tokens depend on what stands beside them.
        """
        if self._wording is not None:
            raise Invalid("pairs: this model reads words of its own around the texts; send texts, not token ids")
        return [self._row([PlainTokens(ids) for ids in row], options) for row in rows]

    def _encode_worded(
        self, rows: Sequence[Sequence[str]], wording: PairWording, options: RowOptions, *, ids_only: bool
    ) -> list[TokenizedInput]:
        """Pairs with the model's words around both texts; what is too long is cut as one text would be."""
        worded = [wording.wrap(row) for row in rows]
        plain = self._plain_tokens([text for row in worded for text in row], ids_only=ids_only)
        made = []
        for row, texts in zip(rows, worded, strict=True):
            spans = wording.spans(row)
            own = [replace(plain[text], span=span) for text, span in zip(texts, spans, strict=True)]
            made.append(self._row(own, options, row, as_one=options.truncation == "longest_first"))
        return made

    def _plain_tokens(self, given: Sequence[str], *, ids_only: bool) -> dict[str, PlainTokens]:
        """The tokens of each text, nothing added and nothing cut."""
        plain = self._short_texts(given) if ids_only else {}
        texts = [text for text in dict.fromkeys(given) if text not in plain]
        encode = self._tokenizer.encode_batch_fast if ids_only else self._tokenizer.encode_batch
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = texts[start : start + TEXTS_AT_ONCE]
            found = encode(part, add_special_tokens=False)
            tokens = [PlainTokens.of(encoding, ids_only=ids_only) for encoding in found]
            plain.update(zip(part, tokens, strict=True))
        return plain

    def _short_texts(self, given: Sequence[str]) -> dict[str, PlainTokens]:
        """The ids of those that have a shorter way, where all are short."""
        if self._plain_text is None or sum(map(len, given)) > INLINE_CHARACTERS:
            return {}
        found = {text: self._plain_text.ids(text) for text in dict.fromkeys(given)}
        return {text: PlainTokens(ids) for text, ids in found.items() if ids is not None}

    def _row(
        self,
        texts: Sequence[PlainTokens],
        options: RowOptions,
        sources: Sequence[str] | None = None,
        *,
        as_one: bool = False,
    ) -> TokenizedInput:
        template = self._single if len(texts) == 1 else self._pair
        if template is None:
            raise Invalid("this model's tokenizer has no template for pairs; send one text an input")
        truncation: RowTruncation = "as_one" if as_one else options.truncation
        room, lengths = self._longest - template.num_added, [len(text.ids) for text in texts]
        kept = cut(lengths, room, truncation, most=options.most, from_start=options.from_start)
        return template.join(texts, kept, sources)
