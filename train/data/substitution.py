"""Texts that nobody wrote, for a student that copies a teacher: some tokens replaced by any others.

Unlabelled text of one kind leaves most of a vocabulary unseen, and a teacher has an answer for every text.
"""

import torch
from tokenizers import Tokenizer
from torch import Tensor

from train.data.batching import TokenBatch


def ordinary_tokens(tokenizer: Tokenizer) -> Tensor:
    """Ids that stand for words or parts of them, int64 [n]: no special token, no place holder of the vocabulary."""
    special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    special |= set(tokenizer.encode("").ids)
    ids = [
        index
        for token, index in tokenizer.get_vocab().items()
        if index not in special and not (token.startswith("[") and token.endswith("]"))
    ]
    return torch.tensor(sorted(ids))


def substitute(batch: TokenBatch, tokens: Tensor, share: float, generator: torch.Generator) -> TokenBatch:
    """A batch in which every other text has a share of its ordinary tokens replaced by tokens drawn from `tokens`."""
    ids = batch.input_ids
    drawn = tokens[torch.randint(len(tokens), ids.shape, generator=generator)]
    chosen = torch.rand(ids.shape, generator=generator) < share
    chosen &= torch.rand(len(ids), 1, generator=generator) < 0.5  # whole texts stay as they were written
    return batch._replace(input_ids=torch.where(chosen & torch.isin(ids, tokens), drawn, ids))
