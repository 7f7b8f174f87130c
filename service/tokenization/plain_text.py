"""A shorter way to the same token ids, for plain English-like text and tokenizers of BERT's kind.

BERT's normaliser takes four passes over a text (control characters, Chinese characters, accents, case), each keeping
track of where every character came from. On printable ASCII only the last one does anything. There a word is a run of
letters and digits or one other character, and WordPiece takes each word by itself, its longest beginning first. So a
word that the vocabulary has is one token, found in a dictionary; the model is asked for the others. A short text takes
a fifth of the library's time.
"""

import re
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

_WORD = re.compile("[a-zA-Z0-9]+|[^a-zA-Z0-9 ]")


class PlainText:
    """Knows which texts need no normaliser, and tokenises them without. Shares the vocabulary of its tokenizer."""

    def __init__(self, tokenizer: FastTokenizer, added: Iterable[str]) -> None:
        self._has_lower_case = tokenizer.normalizer.lowercase
        self._added = re.compile("|".join(re.escape(token.lower()) for token in added) or "(?!)")  # or nothing
        self._tokenizer = FastTokenizer(tokenizer.model)
        self._tokenizer.pre_tokenizer = tokenizer.pre_tokenizer
        self._model = tokenizer.model
        longest = tokenizer.model.max_input_chars_per_word  # a longer word is unknown, in the vocabulary or not
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        self._whole_words = {
            word: token_id for word, token_id in vocabulary.items() if len(word) <= longest and _WORD.fullmatch(word)
        }

    @classmethod
    def of(cls, tokenizer: FastTokenizer) -> "PlainText | None":
        """The shorter way of a tokenizer; None if it has none.

        An added token beyond printable ASCII can be found in a text that looks plain: a newline is one split as good as
        another no longer, and `café` is normalised to `cafe`.
        """
        is_bert = (
            isinstance(tokenizer.normalizer, BertNormalizer)
            and isinstance(tokenizer.pre_tokenizer, BertPreTokenizer)
            and isinstance(tokenizer.model, WordPiece)
        )
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        return cls(tokenizer, added) if is_bert and all(map(_is_printable_ascii, added)) else None

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

    def ids(self, texts: Sequence[str], *, are_short: bool) -> list[list[int] | None]:
        """All tokens of each text, without special ones; None for a text that `prepare` refuses.

        Short texts hold the interpreter throughout: letting others in, as the library does, costs more than tokenising.
        """
        prepared = [self.prepare(text) for text in texts]
        if are_short:
            return [None if text is None else self._ids(text) for text in prepared]
        encodings = iter(self._tokenizer.encode_batch_fast([text for text in prepared if text is not None]))
        return [None if text is None else next(encodings).ids for text in prepared]

    def _ids(self, prepared: str) -> list[int]:
        found: list[int] = []
        for word in _WORD.findall(prepared):
            token_id = self._whole_words.get(word)
            if token_id is None:
                found += [token.id for token in self._model.tokenize(word)]
            else:
                found.append(token_id)
        return found


def _is_printable_ascii(text: str) -> bool:
    return text.isascii() and text.isprintable()
