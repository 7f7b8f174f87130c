"""A shorter way to the same token ids, for plain English-like text and tokenizers of BERT's kind.

BERT's normaliser takes four passes over a text (control characters, Chinese characters, accents, case), each keeping
track of where every character came from. On printable ASCII only the last one does anything.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer


class PlainText:
    """Knows which texts need no normaliser, and tokenises them without. Shares the vocabulary of its tokenizer."""

    def __init__(
        self, tokenizer: FastTokenizer, *, lowercase: bool, truncation: dict[str, Any], added: Iterable[str]
    ) -> None:
        self._has_lower_case = lowercase
        self._added = tuple(token.lower() for token in added)
        self._tokenizer = FastTokenizer(tokenizer.model)
        self._tokenizer.pre_tokenizer = tokenizer.pre_tokenizer
        self._tokenizer.post_processor = tokenizer.post_processor
        self._tokenizer.enable_truncation(**truncation)

    @classmethod
    def of(cls, tokenizer: FastTokenizer) -> "PlainText | None":
        """The shorter way of a tokenizer that truncates; None where it has none.

        An added token beyond printable ASCII can be found in a text that looks plain: a newline is one split as good as
        another no longer, and `café` is normalised to `cafe`.
        """
        normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
        is_bert = isinstance(normalizer, BertNormalizer) and isinstance(splitter, BertPreTokenizer)
        truncation = tokenizer.truncation
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        if not (is_bert and truncation and all(map(_is_printable_ascii, added))):
            return None
        return cls(tokenizer, lowercase=normalizer.lowercase, truncation=truncation, added=added)

    def prepare(self, text: str) -> str | None:
        """The text as the normaliser would leave it; None where that takes more than lower case.

        An added token such as `[SEP]` is found in a text before it is normalised: that takes more, too.
        """
        prepared = text.replace("\n", " ")  # one split as good as the other
        if not _is_printable_ascii(prepared):
            return None
        lower = prepared.lower()
        if any(token in lower for token in self._added):
            return None
        return lower if self._has_lower_case else prepared

    def encode(self, prepared: Sequence[str]) -> list[Encoding]:
        """Texts that `prepare` gave; only their ids are those of the text, offsets are not kept."""
        return self._tokenizer.encode_batch_fast(prepared)


def _is_printable_ascii(text: str) -> bool:
    return text.isascii() and text.isprintable()
