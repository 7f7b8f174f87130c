"""Between a padded batch [B, S, ...] and its real tokens in a row [T, ...].

Only attention needs to know which token belongs to which text; everything else treats tokens alike, so it runs on the
real ones and padding costs nothing there. T is the sum of the lengths.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding


class Packing(NamedTuple):
    """The place of each token in both forms."""

    real: Tensor  # bool [B, S], True where a token is real
    packed: Tensor  # int64 [T], place in the flattened batch of each real token, text by text
    # int64 [B, S], place in the row of real tokens; padding points to the text's last real token, so that padded rows
    # hold finite values of the same text. A text of length 0 has none: its row holds another text's last real token,
    # finite and without meaning.
    padded: Tensor
    lengths: Tensor  # int64 [B]
    # int64 [B], how many of a row's tokens attention sees as keys: `lengths`, or fewer if a row ends in tokens that are
    # computed but that no token looks at
    seen: Tensor

    def pack(self, x: Tensor) -> Tensor:
        """[B, S, ...] -> [T, ...]."""
        return x.flatten(0, 1).index_select(0, self.packed)

    def pad(self, x: Tensor) -> Tensor:
        """[T, C] -> [B, S, C]."""
        return embedding(self.padded, x)  # a lookup of rows by indices [B, S]: one node of a graph

    def positions(self) -> Tensor:
        """Position of each real token in its text, int64 [T]."""
        batch, sequence = self.real.shape
        return self.pack(torch.arange(sequence, device=self.real.device).expand(batch, sequence))


def real_tokens(lengths: Tensor, sequence_length: int) -> Tensor:
    """True where a token of right-padded rows is real, bool [B, S]."""
    return torch.arange(sequence_length, device=lengths.device) < lengths[:, None]


def packing(lengths: Tensor, sequence_length: int, seen: Tensor | None = None) -> Packing:
    """The packing of right-padded rows; at least one length must be above 0. `seen` is None for all tokens."""
    real = real_tokens(lengths, sequence_length)
    flat = real.flatten()
    padded = (flat.cumsum(0) - 1).clamp(min=0).view_as(real)
    return Packing(real, flat.nonzero().squeeze(1), padded, lengths, lengths if seen is None else seen)
