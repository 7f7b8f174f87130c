"""The scale of each column of an int8 weight, with which every processor computes the same with its fastest kernel.

x86 without VNNI multiplies uint8 by int8 and adds the products of two neighbours along K in 16 bits, which saturates
(`vpmaddubsw`). A scale is so large that no input gets there.
"""

import torch
from torch import Tensor, nn

MOST = 127
MOST_IN_PAIR = 127.5  # before rounding, which adds a half to each of two and so leaves at most 128: 255 * 128 < 2**15


def column_scale(weight: Tensor) -> Tensor:
    """The least scale [N] of a weight [N, K] with which single values and sums of two of one sign stay in bounds."""
    signed = torch.stack([weight.relu(), (-weight).relu()])  # [2, N, K]
    pairs = nn.functional.pad(signed, (0, weight.shape[1] % 2)).reshape(2, len(weight), -1, 2)
    single, pair = signed.amax(dim=(0, 2)), pairs.sum(dim=3).amax(dim=(0, 2))  # [N]
    return torch.maximum(single / MOST, pair / MOST_IN_PAIR).clamp(min=torch.finfo(weight.dtype).tiny)
