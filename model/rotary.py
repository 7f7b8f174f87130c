"""Rotary positions: queries and keys turned by angles that grow with the position (Su et al. 2021).

Tables are float32, with the operations that networks were trained with in their order: an angle is a frequency times a
position, so one rounded otherwise would be felt thousands of tokens on.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.config_parts import RopeScaling

HOST = "cpu"  # tables have values even where a network is laid out on the meta device


class Rotation(NamedTuple):
    """Turns pairs of dimensions by an angle that grows with the position (Su et al. 2021, equation 34).

    Dimension i < K/2 is paired with i + K/2.

    Attributes:
        cos: [T, 1, K/2].
        sin: [T, 1, K/2].
    """

    cos: Tensor
    sin: Tensor

    def turn(self, x: Tensor, num_heads: int) -> Tensor:
        """[T, H*K] -> [T, H*K]."""
        first, second = x.view(x.shape[0], num_heads, -1).chunk(2, dim=-1)  # [T, H, K/2] each
        turned = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        return torch.cat(turned, dim=-1).flatten(1)


class Rotary(nn.Module):
    """Angles of every position, position * theta^(-2i/K) / divisor, or with frequencies of `RopeScaling`."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self, *, d_k: int, max_positions: int, theta: float, divisor: float = 1.0, scaling: RopeScaling | None = None
    ) -> None:
        super().__init__()
        powers = torch.arange(0, d_k, 2, dtype=torch.float32, device=HOST) / d_k
        frequencies = 1.0 / (theta**powers) / divisor  # [K/2]
        magnitude = 1.0
        if scaling is not None:
            frequencies, magnitude = scale_frequencies(theta**powers, theta, scaling), scaling.magnitude
        angles = torch.arange(max_positions, dtype=torch.float32, device=HOST)[:, None] * frequencies
        self.register_buffer("cos", angles.cos() * magnitude, persistent=False)  # [P, K/2]
        self.register_buffer("sin", angles.sin() * magnitude, persistent=False)

    def forward(self, positions: Tensor) -> Rotation:
        """Positions int64 [T] -> their rotation."""
        cos, sin = (table.index_select(0, positions).unsqueeze(1) for table in (self.cos, self.sin))
        return Rotation(cos, sin)


def scale_frequencies(periods: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """Frequencies [K/2] from theta^(2i/K) [K/2], which are their reciprocals before scaling."""
    if scaling.kind == "yarn":
        slow = _yarn_ramp(len(periods), theta, scaling)
        return 1.0 / (scaling.factor * periods) * slow + 1.0 / periods * (1 - slow)
    frequencies = 1.0 / periods
    turns = scaling.original_positions / (2 * math.pi / frequencies)
    slow = frequencies / scaling.factor
    fast_share = (turns - scaling.low) / (scaling.high - scaling.low)
    between = (1 - fast_share) * slow + fast_share * frequencies
    return torch.where(turns < scaling.low, slow, torch.where(turns > scaling.high, frequencies, between))


def _yarn_ramp(pairs: int, theta: float, scaling: RopeScaling) -> Tensor:
    """0 for pairs that keep their frequency, 1 for those divided by the factor, [K/2]."""

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(scaling.original_positions / (times * 2 * math.pi)) / math.log(theta)

    first, last = pair_that_turns(scaling.high), pair_that_turns(scaling.low)
    if scaling.whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    width = last - first if last != first else 0.001
    return ((torch.arange(pairs, dtype=torch.float32, device=HOST) - first) / width).clamp(0, 1)
