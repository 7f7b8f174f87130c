"""How an encoder knows where its tokens stand: added to the embedding, or applied inside attention.

Tables are computed once, in float32 as the networks were trained, and are no part of a state: they follow from the
configuration. Shape letters as in `model.config`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from model.config import EncoderConfig
from model.packing import Packing
from model.rotary import HOST, Rotary, Rotation

HALF_BLOCK = 64  # a block of 128 queries is given 256 keys, so windows up to ModernBERT's are computed in blocks
LONGEST_DENSE = 1024  # tokens of a row; blocks save 10 % of a layer there, and cost as much at 256


class Window(NamedTuple):
    """Which keys a query sees: those from `behind` tokens before it to `ahead` tokens after it, itself among them."""

    behind: int
    ahead: int


class PositionTerms(NamedTuple):
    """What positions change inside the attention of one layer; nothing where they stand in the embedding.

    Attributes:
        rotation: applied to queries and keys, or None.
        bias: added to the scores, [1, H, S, S] or [1, 1, S, S], or None. The lowest finite value where a query does
            not see a key.
        window: all that the bias says, where long rows are worth computing in blocks; else None.
    """

    rotation: Rotation | None = None
    bias: Tensor | None = None
    window: Window | None = None

    def of_heads(self, heads: tuple[int, ...]) -> "PositionTerms":
        """The terms of a layer that has kept only these heads."""
        if self.bias is None or self.bias.shape[1] == 1:
            return self
        return self._replace(bias=self.bias[:, list(heads)])


class AttentionPositions(nn.Module):
    """The terms of global and of local layers, made once a forward pass and shared by the layers."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.window = config.window
        self.causal = config.causal
        self.blocks = _block_window(config)
        heads = config.original_heads or config.num_heads[0]
        self.rotary: Rotary | None = None
        self.local_rotary: Rotary | None = None
        self.bias: AlibiBias | BucketedBias | None = None
        if config.attention_positions == "rotary":
            self.rotary = _rotary(config, config.rope_theta)
            if config.local_layers:
                self.local_rotary = _rotary(config, config.local_rope_theta or config.rope_theta)
        elif config.attention_positions == "alibi" and heads:
            self.bias = AlibiBias(heads)
        elif config.attention_positions == "relative" and heads:
            self.bias = BucketedBias(
                num_heads=heads,
                buckets=config.relative_buckets,
                max_distance=config.relative_distance,
                max_positions=config.max_positions,
            )

    def forward(self, tokens: Packing, dtype: torch.dtype) -> tuple[PositionTerms, PositionTerms]:
        """The terms of global layers and of local ones.

        Args:
            tokens: where the tokens stand.
            dtype: of the scores.
        """
        if self.rotary is None and self.bias is None and self.window is None and not self.causal:
            return PositionTerms(), PositionTerms()
        positions, offsets = tokens.positions(), _offsets(tokens)
        bias = None if self.bias is None else self.bias(offsets)
        if self.causal:
            bias = _hiding(offsets > 0, bias, dtype)
        far = PositionTerms(None if self.rotary is None else self.rotary(positions), bias)
        if self.window is None:
            return far, far
        rotation = None if self.local_rotary is None else self.local_rotary(positions)
        return far, PositionTerms(rotation, _hiding(offsets.abs() > self.window, bias, dtype), self.blocks)


class AlibiBias(nn.Module):
    """-slope * |distance|, one slope a head (Press et al. 2022, in both directions as JinaBERT has it)."""

    slopes: Tensor

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        slopes = torch.tensor(alibi_slopes(num_heads), dtype=torch.float32, device=HOST)
        self.register_buffer("slopes", slopes.view(-1, 1, 1), persistent=False)

    def forward(self, offsets: Tensor) -> Tensor:
        """Offsets int64 [S, S] -> [1, H, S, S]."""
        return (offsets.abs().to(self.slopes.dtype) * -self.slopes).unsqueeze(0)


class BucketedBias(nn.Module):
    """A learned value a head for each bucket of distances (Raffel et al. 2020, section 2.1; MPNet's is the same)."""

    bucket: Tensor

    def __init__(self, *, num_heads: int, buckets: int, max_distance: int, max_positions: int) -> None:
        super().__init__()
        self.buckets = nn.Embedding(buckets, num_heads)
        self.furthest = max_positions - 1
        offsets = torch.arange(-self.furthest, self.furthest + 1, device=HOST)
        self.register_buffer("bucket", relative_buckets(offsets, buckets, max_distance), persistent=False)

    def forward(self, offsets: Tensor) -> Tensor:
        """Offsets int64 [S, S] -> [1, H, S, S]."""
        of_offset: Tensor = self.buckets(self.bucket)  # [2P - 1, H]
        return embedding(offsets + self.furthest, of_offset).permute(2, 0, 1).unsqueeze(0)


def alibi_slopes(num_heads: int) -> list[float]:
    """2^(-8h/n) for h = 1..n where n is a power of two; else those, then every other slope of twice as many heads."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    return slopes if power == num_heads else slopes + alibi_slopes(2 * power)[::2][: num_heads - power]


def relative_buckets(offsets: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Bucket of each offset (key minus query): keys after the query have the upper half.

    Half of a side's buckets hold one distance each; the rest widen logarithmically up to `max_distance`. In float32,
    as the networks were trained: at the edges of buckets other precisions round to the other side.
    """
    side = buckets // 2
    exact = side // 2
    distance = offsets.abs()
    share = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (share * (side - exact)).long()).clamp(max=side - 1)
    return torch.where(distance < exact, distance, far) + side * (offsets > 0)


def sinusoids(max_positions: int, size: int) -> Tensor:
    """Sine and cosine of position / 10000^(2i/size) in turn, [P, size] (Vaswani et al. 2017, section 3.5)."""
    frequencies = 10000 ** (-torch.arange(0, size, 2, dtype=torch.float64, device=HOST) / size)
    angles = torch.arange(max_positions, dtype=torch.float64, device=HOST)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :size].float()


def _rotary(config: EncoderConfig, theta: float) -> Rotary:
    return Rotary(
        d_k=config.d_k,
        max_positions=config.max_positions,
        theta=theta,
        divisor=config.rope_divisor,
        scaling=config.rope_scaling,
    )


def _block_window(config: EncoderConfig) -> Window | None:
    """The window of local layers, where rows may be long, it is narrow, and the bias says nothing else."""
    if config.window is None or config.window > HALF_BLOCK or config.max_positions <= LONGEST_DENSE:
        return None
    if config.attention_positions in {"alibi", "relative"}:
        return None
    return Window(config.window, 0 if config.causal else config.window)


def _offsets(tokens: Packing) -> Tensor:
    """Key position minus query position, int64 [S, S]."""
    places = torch.arange(tokens.real.shape[1], device=tokens.real.device)
    return places - places[:, None]


def _hiding(hidden: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A bias that hides keys from queries, bool [S, S] -> [1, 1 or H, S, S].

    The lowest finite value, not minus infinity: rows of padded queries may see no real key, and stay finite.
    """
    kept = torch.zeros((), dtype=dtype, device=hidden.device) if bias is None else bias
    return torch.where(hidden[None, None], torch.full_like(kept, torch.finfo(dtype).min), kept)
