"""From texts to batches of tokens, of similar length so that little is padding."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from export.errors import SourceError
from model.analysis.arrays import BoolArray, IntArray
from model.analysis.punctuation import punctuation_mask

MOST_BATCH_TOKENS = 1024
MOST_WEIGHT_BYTES = 128 << 20  # attention weights that one batch materialises, over all layers


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One text as the network reads it: `ids [n]`, `special [n]`, `punctuation [n]`, `offsets [n, 2]` in characters."""

    place: int
    ids: IntArray
    special: BoolArray
    punctuation: BoolArray
    offsets: IntArray

    def at(self, place: int) -> "TokenizedText":
        """The same text under another number."""
        return replace(self, place=place)


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Texts of similar length, or pairs of them.

    Attributes:
        input_ids: int64 [B, S], right-padded.
        lengths: int64 [B].
        texts: the texts themselves; none of pairs.
        token_type_ids: int64 [B, S], None for all 0.
    """

    input_ids: Tensor
    lengths: Tensor
    texts: tuple[TokenizedText, ...] = ()
    token_type_ids: Tensor | None = None


def tokenize(texts: Sequence[str], tokenizer: Tokenizer, longest: int) -> list[TokenizedText]:
    """Every text with at least one ordinary token, cut to `longest` tokens; `place` is its index among `texts`.

    Raises:
        SourceError: no ordinary token fits into `longest`, where the tokenizer would not cut at all.
    """
    special = tokenizer.num_special_tokens_to_add(is_pair=False)
    if longest <= special:
        raise SourceError(
            f"texts cut to {longest} tokens hold nothing but the tokenizer's {special} special ones; "
            f"at least {special + 1} are needed"
        )
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(longest)
    tokenized = [_tokenized(place, text, cutting.encode(text)) for place, text in enumerate(texts)]
    return [text for text in tokenized if not text.special.all()]


def count_tokens(texts: Sequence[TokenizedText]) -> Counter[int]:
    """How often each token id occurs."""
    counted: Counter[int] = Counter()
    for text in texts:
        counted.update(text.ids.tolist())
    return counted


def batches(texts: Sequence[TokenizedText], total_heads: int) -> Iterator[TextBatch]:
    """Batches, shortest texts first, bounded in tokens and in the bytes of their attention weights."""
    batch: list[TokenizedText] = []
    for text in sorted(texts, key=lambda text: len(text.ids)):
        tokens = (len(batch) + 1) * len(text.ids)
        if batch and (tokens > MOST_BATCH_TOKENS or 4 * tokens * len(text.ids) * total_heads > MOST_WEIGHT_BYTES):
            yield collate(batch)
            batch = []
        batch.append(text)
    if batch:
        yield collate(batch)


def pair_batches(
    pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer, longest: int, total_heads: int
) -> list[TextBatch]:
    """Pairs as the tokenizer makes them, the longer text cut first, in batches of similar length."""
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(longest, strategy="longest_first")
    rows = sorted((cutting.encode(*pair) for pair in pairs), key=lambda row: len(row.ids))
    size = max(1, min(MOST_BATCH_TOKENS // longest, MOST_WEIGHT_BYTES // max(1, 4 * longest**2 * total_heads)))
    return [_collate_pairs(rows[start : start + size]) for start in range(0, len(rows), size)]


def _collate_pairs(rows: Sequence[Encoding]) -> TextBatch:
    ids, types = (
        pad_sequence([torch.tensor(row, dtype=torch.int64) for row in values], batch_first=True)
        for values in ([row.ids for row in rows], [row.type_ids for row in rows])
    )
    return TextBatch(ids, torch.tensor([len(row.ids) for row in rows]), token_type_ids=types)


def _tokenized(place: int, text: str, encoding: Encoding) -> TokenizedText:
    special = np.array(encoding.special_tokens_mask, dtype=np.bool_)
    pieces = [text[start:end].strip() for start, end in encoding.offsets]
    return TokenizedText(
        place,
        np.array(encoding.ids, dtype=np.int64),
        special,
        punctuation_mask(pieces, special),
        np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2),
    )


def collate(texts: Sequence[TokenizedText]) -> TextBatch:
    """Texts as one batch, in their order."""
    input_ids = pad_sequence([torch.from_numpy(text.ids) for text in texts], batch_first=True)
    return TextBatch(input_ids, torch.tensor([len(text.ids) for text in texts]), tuple(texts))
