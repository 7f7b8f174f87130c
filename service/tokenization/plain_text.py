"""A shorter way to the same token ids, for plain English-like text and tokenizers of BERT's kind.

BERT's normaliser takes four passes over a text (control characters, Chinese characters, accents, case), each keeping
track of where every character came from. On printable ASCII only the last one does anything. There a word is a run of
letters and digits or one other character, and WordPiece takes each word by itself, its longest beginning first. So a
word that the vocabulary has is one token, found in a dictionary; the model is asked for the others. A short text takes
a fifth of the library's time.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from service.tokenization.rows import RowTemplate, TokenizedInput

_WORD = re.compile("[a-zA-Z0-9]+|[^a-zA-Z0-9 ]")
_NOTHING = "(?!)"  # a pattern that no text has


class PlainText:
    """Knows which texts need no normaliser, and tokenises them without. Shares the vocabulary of its tokenizer."""

    def __init__(
        self,
        tokenizer: FastTokenizer,
        template: RowTemplate,
        *,
        lowercase: bool,
        truncation: dict[str, Any],
        added: Iterable[str],
    ) -> None:
        self._has_lower_case = lowercase
        self._added = re.compile("|".join(re.escape(token.lower()) for token in added) or _NOTHING)
        self._tokenizer = FastTokenizer(tokenizer.model)
        self._tokenizer.pre_tokenizer = tokenizer.pre_tokenizer
        self._tokenizer.post_processor = tokenizer.post_processor
        self._tokenizer.enable_truncation(**truncation)
        self._first, self._last = (list(special.ids) for special in template.added)
        self._room = truncation["max_length"] - template.num_added
        self._model = tokenizer.model
        longest = tokenizer.model.max_input_chars_per_word  # a longer word is unknown, in the vocabulary or not
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        self._whole_words = {
            word: token_id for word, token_id in vocabulary.items() if len(word) <= longest and _WORD.fullmatch(word)
        }

    @classmethod
    def of(cls, tokenizer: FastTokenizer) -> "PlainText | None":
        """The shorter way of a tokenizer that truncates; None if it has none.

        An added token beyond printable ASCII can be found in a text that looks plain: a newline is one split as good as
        another no longer, and `café` is normalised to `cafe`.
        """
        normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
        is_bert = isinstance(normalizer, BertNormalizer) and isinstance(splitter, BertPreTokenizer)
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        if not (is_bert and isinstance(tokenizer.model, WordPiece) and all(map(_is_printable_ascii, added))):
            return None
        template = RowTemplate.of(tokenizer.encode("a"), 1)
        truncation = tokenizer.truncation
        if template is None or not truncation:
            return None
        return cls(tokenizer, template, lowercase=normalizer.lowercase, truncation=truncation, added=added)

    def prepare(self, text: str) -> str | None:
        """The text as the normaliser would leave it; None where that takes more than lower case.

        An added token such as `[SEP]` is found in a text before it is normalised: that takes more, too.
        """
        prepared = text.replace("\n", " ")  # one split as good as the other
        if not _is_printable_ascii(prepared):
            return None
        lower = prepared.lower()
        if self._added.search(lower) is not None:
            return None
        return lower if self._has_lower_case else prepared

    def tokenize(self, text: str) -> TokenizedInput | None:
        """A short text's ids, cut to what the model takes; None for a text that `prepare` refuses."""
        ids = self.ids(text)
        if ids is None:
            return None
        row = [*self._first, *ids[: self._room], *self._last]
        full_length = len(self._first) + len(ids) + len(self._last)
        return TokenizedInput(
            input_ids=np.array(row, dtype=np.int64),
            truncated=len(row) < full_length,
            full_length=full_length,
            encoding=None,
            sources=(text,),
        )

    def ids(self, text: str) -> list[int] | None:
        """All tokens of a short text, without special ones; None for a text that `prepare` refuses.

        It holds the interpreter throughout. The library lets other threads in, which costs a short text more than
        being tokenised, and saves a long one from holding up everyone.
        """
        prepared = self.prepare(text)
        if prepared is None:
            return None
        found: list[int] = []
        for word in _WORD.findall(prepared):
            token_id = self._whole_words.get(word)
            if token_id is None:
                found += [token.id for token in self._model.tokenize(word)]
            else:
                found.append(token_id)
        return found

    def encode(self, prepared: Sequence[str]) -> list[Encoding]:
        """Texts that `prepare` gave; only their ids match the text, offsets are not kept."""
        return self._tokenizer.encode_batch_fast(prepared)


def _is_printable_ascii(text: str) -> bool:
    return text.isascii() and text.isprintable()
