"""Token ids, and the batches of an epoch: texts of similar length together, in an order that only the seed decides."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from train.parallel import generator_of

POOL = 32  # batches that are sorted by length together: little padding, and batch mates that differ from epoch to epoch
EVEN = 64  # tokens; 32 of a batch are left out on average
EVEN_FROM = 512  # tokens of a batch; of a smaller one too large a share would be left out
SHORTEST = 3  # tokens that a cut leaves of a text

BETWEEN = (". ", ". ", ", ")  # two texts
DRAWN = 2  # apart from what else is drawn from a seed


class TokenBatch(NamedTuple):
    """Texts as the network reads them."""

    input_ids: Tensor  # int64 [B, S], right-padded
    lengths: Tensor  # int64 [B]
    token_type_ids: Tensor | None = None  # int64 [B, S], or None for all 0

    def to(self, device: torch.device) -> "TokenBatch":
        """The same on a device."""
        types = None if self.token_type_ids is None else self.token_type_ids.to(device)
        return TokenBatch(self.input_ids.to(device), self.lengths.to(device), types)

    def rows(self, some: slice) -> "TokenBatch":
        """Some of the texts."""
        types = None if self.token_type_ids is None else self.token_type_ids[some]
        return TokenBatch(self.input_ids[some], self.lengths[some], types)


class TokenIds(NamedTuple):
    """Token ids of texts, and their types where texts are pairs."""

    ids: list[list[int]]
    types: list[list[int]] | None = None

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [len(row) for row in self.ids]

    def batch(self, places: Sequence[int]) -> TokenBatch:
        """Some texts as one batch, in the order given."""
        lengths = torch.tensor([len(self.ids[place]) for place in places])
        types = None if self.types is None else _padded([self.types[place] for place in places])
        return TokenBatch(_padded([self.ids[place] for place in places]), lengths, types)

    def even_batch(self, places: Sequence[int]) -> TokenBatch:
        """The same, with a multiple of `EVEN` tokens: the last texts are left out, and one is cut.

        oneDNN makes new kernels for a number of tokens that did not occur before.
        """
        rows = [self.ids[place] for place in places]
        total = sum(map(len, rows))
        excess = total % EVEN if total >= EVEN_FROM else 0
        kept: list[list[int]] = []
        for row in reversed(rows):
            if len(row) <= excess:
                excess -= len(row)
                continue
            cut = max(0, min(excess, len(row) - SHORTEST))
            excess -= cut
            kept.insert(0, row[: len(row) - 1 - cut] + row[-1:])  # the token that ends a text stays
        return TokenBatch(_padded(kept), torch.tensor([len(row) for row in kept]))


def tokenize_texts(texts: Sequence[Any], tokenizer: Tokenizer, longest: int, *, pairs: bool = False) -> TokenIds:
    """Texts, or pairs of them, cut to `longest` tokens: of a pair the longer text first."""
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(longest)
    rows = cutting.encode_batch_fast(list(texts))
    return TokenIds([row.ids for row in rows], [row.type_ids for row in rows] if pairs else None)


def epoch_batches(lengths: Sequence[int], batch_size: int, *, seed: int, epoch: int) -> list[list[int]]:
    """Every place once, in batches of `batch_size`; what is left over joins the next epoch's chance.

    Texts are shuffled, sorted by length within a pool of batches, and the batches shuffled again.
    """
    generator = generator_of(seed, epoch)
    order: list[int] = torch.randperm(len(lengths), generator=generator).tolist()
    batch_size = min(batch_size, len(order))
    order = order[: len(order) - len(order) % batch_size]
    made = []
    for start in range(0, len(order), POOL * batch_size):
        pool = sorted(order[start : start + POOL * batch_size], key=lengths.__getitem__)
        made += [pool[at : at + batch_size] for at in range(0, len(pool), batch_size)]
    shuffled: list[int] = torch.randperm(len(made), generator=generator).tolist()
    return [made[index] for index in shuffled]


def as_running_text(texts: Sequence[str], share: float, seed: int) -> list[str]:
    """Every text once, a share of them ended with a full stop, half of these behind one or two more texts."""
    generator = generator_of(seed, DRAWN)

    def draw(most: int) -> int:
        return int(torch.randint(most, (), generator=generator))

    chosen = (torch.rand(len(texts), generator=generator) < share).tolist()
    made = list(texts)
    for place, is_chosen in enumerate(chosen):
        if is_chosen:
            row = texts[place].rstrip(".")
            for _ in range(draw(2) * (1 + draw(2))):
                row += BETWEEN[draw(len(BETWEEN))] + texts[draw(len(texts))].rstrip(".")
            made[place] = f"{row}."
    return made


def substitute(batch: TokenBatch, tokens: Tensor, share: float, generator: torch.Generator) -> TokenBatch:
    """A batch in which every other text has a share of its ordinary tokens replaced by tokens drawn from `tokens`."""
    ids = batch.input_ids
    drawn = tokens[torch.randint(len(tokens), ids.shape, generator=generator)]
    chosen = torch.rand(ids.shape, generator=generator) < share
    chosen &= torch.rand(len(ids), 1, generator=generator) < 0.5  # whole texts stay as they were written
    return batch._replace(input_ids=torch.where(chosen & torch.isin(ids, tokens), drawn, ids))


def ordinary_tokens(tokenizer: Tokenizer) -> Tensor:
    """Ids that stand for words or parts of them, int64 [n]: no special token, no place holder of the vocabulary."""
    special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    special |= set(tokenizer.encode("").ids)
    special |= {index for token, index in tokenizer.get_vocab().items() if re.fullmatch(r"\[.*\]", token, re.DOTALL)}
    return torch.tensor(sorted(set(tokenizer.get_vocab().values()) - special))


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    return pad_sequence([torch.tensor(row, dtype=torch.int64) for row in rows], batch_first=True)
