"""From one vector a token to one vector a text. Padded rows must be finite; their values do not matter.

A text of length 0 has no vector, and what it gets means nothing: 0 as a mean, the lowest number as a maximum, and
whatever stands in its padding as its first or last token.

It does not normalise and does not truncate: that is the service's, a request at a time.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from model.config import Pooling
from model.packing import real_tokens


def mean_pooling(hidden: Tensor, lengths: Tensor) -> Tensor:
    """Mean over the real tokens of `hidden [B, S, D]` -> [B, D]; 0 for a row of length 0."""
    # A product, not a masked sum: [B, 1, S] @ [B, S, D] adds the tokens in order, and padding adds exact zeros.
    wide = torch.promote_types(hidden.dtype, torch.float32)  # float16 overflows on the sum over a long text
    total = _real_tokens(hidden, lengths).to(wide).transpose(1, 2) @ hidden.to(wide)
    return (total.squeeze(1) / lengths.clamp(min=1)[:, None].to(wide)).to(hidden.dtype)


def cls_pooling(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The first token's vector, [B, D]."""
    del lengths
    return hidden[:, 0]


def max_pooling(hidden: Tensor, lengths: Tensor) -> Tensor:
    """Largest value of each dimension over the real tokens, [B, D]."""
    return hidden.masked_fill(~_real_tokens(hidden, lengths), torch.finfo(hidden.dtype).min).amax(dim=1)


def last_pooling(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The last real token's vector, [B, D]."""
    index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, index).squeeze(1)


POOLINGS: Mapping[Pooling, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"mean": mean_pooling, "cls": cls_pooling, "max": max_pooling, "last": last_pooling}
)


def _real_tokens(hidden: Tensor, lengths: Tensor) -> Tensor:
    """True where a token is real, [B, S, 1]."""
    return real_tokens(lengths, hidden.shape[1])[:, :, None]
