"""How an encoder knows where its tokens stand: added to the embedding, or applied inside attention.

Tables are computed once, in float32 and with the operations of the networks' own training in their order (an angle is a
frequency times a position, so one rounded differently is noticeable thousands of tokens on). They are no part of a
state: they follow from the configuration. Shape letters as in `model.config`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from model.config import EncoderConfig
from model.config_parts import RopeScaling
from model.packing import Packing

HALF_BLOCK = 64  # a block of 128 queries is given 256 keys, so windows up to ModernBERT's are computed in blocks
LONGEST_DENSE = 1024  # tokens of a row; blocks save 10 % of a layer there, and cost as much at 256
HOST = "cpu"  # tables have values even where a network is laid out on the meta device


class Rotation(NamedTuple):
    """Turns pairs of dimensions by an angle that grows with the position (Su et al. 2021, equation 34).

    Dimension i < K/2 is paired with i + K/2.
    """

    cos: Tensor  # [T, 1, K/2]
    sin: Tensor  # [T, 1, K/2]

    def turn(self, x: Tensor, num_heads: int) -> Tensor:
        """[T, H*K] -> [T, H*K]."""
        first, second = x.view(x.shape[0], num_heads, -1).chunk(2, dim=-1)  # [T, H, K/2] each
        turned = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        return torch.cat(turned, dim=-1).flatten(1)


class Window(NamedTuple):
    """Which keys a query sees: those from `behind` tokens before it to `ahead` tokens after it, itself among them."""

    behind: int
    ahead: int


class PositionTerms(NamedTuple):
    """What positions change inside the attention of one layer; nothing if they are added to the embedding."""

    rotation: Rotation | None = None  # applied to queries and keys, or None
    # added to the scores, [1, H, S, S] or [1, 1, S, S], or None. The lowest finite value where a query does not see a
    # key.
    bias: Tensor | None = None
    window: Window | None = None  # all that the bias says, where long rows are worth computing in blocks; else None
    # int64 [2S - 1], rows of a layer's tables of distances, for keys from S - 1 tokens before a query to S - 1 behind
    # it; None for layers without such tables
    distances: Tensor | None = None

    def of_heads(self, heads: tuple[int, ...]) -> "PositionTerms":
        """The terms of a layer that has kept only these heads."""
        if self.bias is None or self.bias.shape[1] == 1:
            return self
        return self._replace(bias=self.bias[:, list(heads)])


class Rotary(nn.Module):
    """Angles of every position, position * theta^(-2i/K) / divisor, or with frequencies of `RopeScaling`."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: EncoderConfig, *, theta: float, d_k: int) -> None:
        super().__init__()
        powers = torch.arange(0, d_k, 2, dtype=torch.float32, device=HOST) / d_k
        frequencies = 1.0 / (theta**powers) / config.rope_divisor  # [K/2]
        magnitude = 1.0
        if (scaling := config.rope_scaling) is not None:
            frequencies, magnitude = scale_frequencies(theta**powers, theta, scaling), scaling.magnitude
        angles = torch.arange(config.max_positions, dtype=torch.float32, device=HOST)[:, None] * frequencies
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


def alibi_slopes(num_heads: int) -> list[float]:
    """2^(-8h/n) for h = 1..n where n is a power of two; else those, then every other slope of twice as many heads."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    return slopes if power == num_heads else slopes + alibi_slopes(2 * power)[::2][: num_heads - power]


class BucketedBias(nn.Module):
    """A learned value a head for each bucket of distances (Raffel et al. 2020, section 2.1; MPNet's is the same)."""

    bucket: Tensor

    def __init__(self, config: EncoderConfig, num_heads: int) -> None:
        super().__init__()
        self.buckets = nn.Embedding(config.relative_buckets, num_heads)
        self.furthest = config.max_positions - 1
        offsets = torch.arange(-self.furthest, self.furthest + 1, device=HOST)
        buckets = relative_buckets(offsets, config.relative_buckets, config.relative_distance)
        self.register_buffer("bucket", buckets, persistent=False)

    def forward(self, offsets: Tensor) -> Tensor:
        """Offsets int64 [S, S] -> [1, H, S, S]."""
        of_offset: Tensor = self.buckets(self.bucket)  # [2P - 1, H]
        return embedding(offsets + self.furthest, of_offset).permute(2, 0, 1).unsqueeze(0)


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


class PositionTable(nn.Module):
    """A vector a head for each row of distances, [H*K, rows]."""

    def __init__(self, size: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, rows))

    def scores(self, x: Tensor, distances: Tensor) -> Tensor:
        """Products of queries or keys [B, H, S, K] with the vectors of distances [2S - 1] -> [B, H, S, 2S - 1]."""
        table = self.weight.index_select(1, distances)  # [H*K, 2S - 1]
        return x @ table.view(x.shape[1], x.shape[3], -1)


class DistanceRows(nn.Module):
    """Which row of a table of distances each distance has (He et al. 2021, equation 3, with DeBERTa v3's buckets)."""

    rows: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.longest = config.max_positions
        behind = torch.arange(self.longest - 1, -self.longest, -1, device=HOST)  # how far a key is before its query
        rows = distance_rows(behind, config.relative_buckets // 2, config.relative_distance)
        self.register_buffer("rows", rows, persistent=False)

    def forward(self, tokens: Packing) -> Tensor:
        """The rows of all distances within a batch, int64 [2S - 1], keys before their query first."""
        sequence = tokens.real.shape[1]
        places = torch.arange(2 * sequence - 1, device=tokens.real.device)
        return self.rows.index_select(0, places + (self.longest - sequence))


def distance_rows(distances: Tensor, span: int, max_distance: int) -> Tensor:
    """Rows of distances (query minus key): one each up to half the span, then logarithmic ones up to `max_distance`.

    In float32 and with the operations of the original: at the edges of buckets others round to the other side. With a
    `max_distance` of 0 each distance has a row, the furthest excepted.
    """
    if max_distance:
        middle = span // 2
        length = torch.where(distances.abs() < middle, torch.full_like(distances, middle - 1), distances.abs())
        widest = torch.log(torch.tensor((max_distance - 1) / middle, device=HOST))
        log = torch.ceil(torch.log(length / middle) / widest * (middle - 1)) + middle
        distances = torch.where(length <= middle, distances.to(log.dtype), log * distances.sign()).long()
    return (distances + span).clamp(0, 2 * span - 1)


def shifted(x: Tensor) -> Tensor:
    """[B, H, S, 2S - 1] by distance -> [B, H, S, S] by key: row i begins at S - 1 - i."""
    sequence = x.shape[2]
    places = torch.arange(sequence, device=x.device)
    index = places - places[:, None] + (sequence - 1)
    return x.gather(3, index.expand(x.shape[0], x.shape[1], sequence, sequence))


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
        self.distances: DistanceRows | None = None
        if config.attention_positions == "rotary":
            self.rotary = Rotary(config, theta=config.rope_theta, d_k=config.d_k)
            if config.local_layers:
                theta, d_k = config.local_rope_theta or config.rope_theta, config.local_head_size or config.d_k
                self.local_rotary = Rotary(config, theta=theta, d_k=d_k)
        elif config.attention_positions == "alibi" and heads:
            self.bias = AlibiBias(heads)
        elif config.attention_positions == "relative" and heads:
            self.bias = BucketedBias(config, heads)
        elif config.attention_positions == "disentangled":
            self.distances = DistanceRows(config)

    def forward(self, tokens: Packing, dtype: torch.dtype) -> tuple[PositionTerms, PositionTerms]:
        """The terms of global layers and of local ones; `dtype` is the scores'."""
        if self.distances is not None:
            terms = PositionTerms(distances=self.distances(tokens))
            return terms, terms
        if self.rotary is None and self.bias is None and self.window is None and not self.causal:
            return PositionTerms(), PositionTerms()
        places = torch.arange(tokens.real.shape[1], device=tokens.real.device)
        positions, offsets = tokens.positions(), places - places[:, None]  # [T]; key minus query, [S, S]
        bias = None if self.bias is None else self.bias(offsets)
        if self.causal:
            bias = _hiding(offsets > 0, bias, dtype)
        far = PositionTerms(None if self.rotary is None else self.rotary(positions), bias)
        if self.window is None:
            return far, far
        rotation = None if self.local_rotary is None else self.local_rotary(positions)
        return far, PositionTerms(rotation, _hiding(offsets.abs() > self.window, bias, dtype), self.blocks)


def _block_window(config: EncoderConfig) -> Window | None:
    """The window of local layers, where rows may be long, it is narrow, and the bias says nothing else."""
    if config.window is None or config.window > HALF_BLOCK or config.max_positions <= LONGEST_DENSE:
        return None
    if config.attention_positions in {"alibi", "relative"}:
        return None
    return Window(config.window, 0 if config.causal else config.window)


def _hiding(hidden: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A bias that hides keys from queries, bool [S, S] -> [1, 1 or H, S, S].

    The lowest finite value, not minus infinity: rows of padded queries may see no real key, and stay finite.
    """
    kept = torch.zeros((), dtype=dtype, device=hidden.device) if bias is None else bias
    return torch.where(hidden[None, None], torch.full_like(kept, torch.finfo(dtype).min), kept)


def sinusoids(max_positions: int, size: int) -> Tensor:
    """Sine and cosine of position / 10000^(2i/size) in turn, [P, size] (Vaswani et al. 2017, section 3.5)."""
    frequencies = 10000 ** (-torch.arange(0, size, 2, dtype=torch.float64, device=HOST) / size)
    angles = torch.arange(max_positions, dtype=torch.float64, device=HOST)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :size].float()
