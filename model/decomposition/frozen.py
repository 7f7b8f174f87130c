"""A network at one text: everything in it that is not linear, as the numbers that it is there.

With attention weights, standard deviations of norms, factors of activations and gates fixed, what is left is linear. An
activation at a known input is a factor, f(z) = (f(z) / z) z (DecompX, Modarressi et al. 2023, section 3.2), in closed
form, so that no z is too small to divide by; at z = 0 each has the limit from above. Shape letters as in
`model.config`; one text, so a tensor of its tokens is [S, ...].
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from model.config_parts import LayerActivation
from model.encoder import Encoder, EncoderLayer
from model.layers import FeedForward
from model.packing import Packing
from model.positions import PositionTerms
from model.tasks import Encoded
from model.value_stream import LayerRequest


class FrozenNorm(NamedTuple):
    """A norm with its deviations fixed: `(x - mean(x)) / deviation * weight`, without the mean for RMSNorm."""

    reciprocal: Tensor | None = None  # 1 / deviation, one a vector: [S], or [] of one vector; None if there is no norm
    weight: Tensor | None = None  # [D]
    is_centred: bool = False  # whether the mean over D is taken off

    def at(self, places: Tensor) -> "FrozenNorm":
        """The norm of vectors at these places, int64 of any shape."""
        return self if self.reciprocal is None else self._replace(reciprocal=self.reciprocal[places])

    def undivided(self) -> "FrozenNorm":
        """The norm without its deviations: the same linear map for every vector."""
        return self if self.reciprocal is None else self._replace(reciprocal=torch.ones_like(self.reciprocal[..., :1]))

    def times_reciprocal(self, factors: Tensor) -> Tensor:
        """Factors [..., S], one a vector, divided by the deviations."""
        return factors if self.reciprocal is None else factors * self.reciprocal

    def apply(self, parts: Tensor) -> Tensor:
        """The norm of parts [S, N, D] with S deviations, or of [N, D] with N or one."""
        if self.reciprocal is None or self.weight is None:
            return parts
        centred = parts - parts.mean(dim=-1, keepdim=True) if self.is_centred else parts
        scale = self.reciprocal[..., None] * self.weight
        return centred * (scale[..., None, :] if scale.dim() < parts.dim() else scale)


def linear(module: nn.Linear, parts: Tensor) -> Tensor:
    """A linear layer on parts [..., N, C], without its bias."""
    rows = nn.functional.linear(parts.reshape(-1, parts.shape[-1]), module.weight)  # two dimensions: one `Gemm`
    return rows.view(*parts.shape[:-1], -1)


class FrozenLayer(NamedTuple):
    """A layer at one text: linear, so that it takes parts [S, N, D] of each token's vector, one a source."""

    module: EncoderLayer
    hidden: Tensor  # [S, D], what the layer gives
    weights: Tensor  # [H, S, S], attention weights, times the query's output gate if there is one
    values: Tensor | None  # [S, G*V], factors of the activation on values; None for no activation
    attention_norm: FrozenNorm  # before attention or after it
    attention_output_norm: FrozenNorm  # of what attention adds
    feed_forward: Tensor  # [S, intermediate], factors between the feed-forward's products
    feed_forward_norm: FrozenNorm  # before the feed-forward or after it
    feed_forward_output_norm: FrozenNorm  # of what the feed-forward adds

    def at(self, places: Tensor) -> "FrozenLayer":
        """The layer behind its attention for vectors at these places, int64 of any shape."""
        return self._replace(
            attention_norm=self.attention_norm.at(places),
            attention_output_norm=self.attention_output_norm.at(places),
            feed_forward=self.feed_forward[places],
            feed_forward_norm=self.feed_forward_norm.at(places),
            feed_forward_output_norm=self.feed_forward_output_norm.at(places),
        )

    def through(self, parts: Tensor, first_values: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The whole layer, [S, N, D] -> [S, N, D], and the parts of its values [S, N, G*V] for a value residual."""
        read = self.read(parts)
        values = self.weighed(read, first_values)
        middle = self.after_attention(parts, self.attended(read, values))
        added = linear(self.module.feed_forward.down, self.inner(middle))
        return self.after_feed_forward(middle, added), values

    def read(self, parts: Tensor) -> Tensor:
        """What attention reads."""
        return self.attention_norm.apply(parts) if self.module.pre_norm else parts

    def weighed(self, read: Tensor, first_values: Tensor | None) -> Tensor | None:
        """The values that attention weighs, [S, N, G*V]; None of a layer without heads."""
        attention = self.module.attention
        if not attention.num_heads:
            return None
        projected = linear(attention.value, read)
        own = projected if self.values is None else projected * self.values[:, None]
        return attention.stream.mix_with(first_values, own)

    def attended(self, read: Tensor, values: Tensor | None) -> Tensor:
        """What attention adds, [S, N, D]."""
        if values is None:
            return torch.zeros_like(read)
        attention, (size, count) = self.module.attention, values.shape[:2]
        heads = attention.num_heads
        split = attention.per_query_head(values).view(size, count, heads, -1)
        of_heads = split.permute(2, 0, 1, 3).reshape(heads, size, -1)  # [H, S, N*V]
        context = (self.weights @ of_heads).view(heads, size, count, -1).permute(1, 2, 0, 3)  # [S, N, H, V]
        return linear(attention.output, context.flatten(2))

    def after_attention(self, parts: Tensor, attended: Tensor) -> Tensor:
        """The residual stream behind attention."""
        middle = parts + self.attention_output_norm.apply(attended)
        return middle if self.module.pre_norm else self.attention_norm.apply(middle)

    def inner(self, middle: Tensor) -> Tensor:
        """Between the feed-forward's products, [S, N, intermediate]."""
        expanded = self.feed_forward_norm.apply(middle) if self.module.pre_norm else middle
        factors = self.feed_forward
        return linear(self.module.feed_forward.up, expanded) * (factors[:, None] if factors.dim() < 3 else factors)

    def after_feed_forward(self, middle: Tensor, added: Tensor) -> Tensor:
        """What the layer gives, from what its feed-forward adds."""
        last = middle + self.feed_forward_output_norm.apply(added)
        return last if self.module.pre_norm else self.feed_forward_norm.apply(last)


class FrozenEncoder(NamedTuple):
    """An encoder at one text."""

    embedded: Tensor  # [S, D], what the embedding layer gives
    layers: list[FrozenLayer]  # first layer first
    final_norm: FrozenNorm  # of the last layer's output
    last_hidden_state: Tensor  # [S, D]
    output: Tensor  # [D'], the task's; [S, D'] of a token classifier

    def output_at(self, place: Tensor | None) -> Tensor:
        """[D'], the task's output, or the token's at `place`, int64 [1]."""
        return self.output if place is None else self.output.index_select(0, place)[0]


def freeze(encoder: Encoder, input_ids: Tensor, token_type_ids: Tensor | None = None) -> FrozenEncoder:
    """Runs an encoder with `eager` attention on one text, int64 [1, S], and keeps what `FrozenEncoder` names."""
    tokens, types = _whole(input_ids), None if token_type_ids is None else token_type_ids[0]
    hidden = embedded = encoder.embeddings(input_ids[0], tokens.packed, types)
    first = encoder.first_values(hidden)
    layers: list[FrozenLayer] = []
    for layer, terms in zip(encoder.layers, encoder.position_terms(tokens, hidden.dtype), strict=True):
        layers.append(_freeze_layer(cast(EncoderLayer, layer), hidden, tokens, terms, first if layers else None))
        hidden = layers[-1].hidden
    last = encoder.final_norm(hidden)
    output = encoder.task_layers(Encoded(last, last[None], tokens, encoder.embeddings.token.weight))
    return FrozenEncoder(embedded, layers, freeze_norm(encoder.final_norm, hidden), last, output[0])


def freeze_norm(norm: nn.Module, hidden: Tensor) -> FrozenNorm:
    """A norm at its input [..., D]."""
    if isinstance(norm, nn.LayerNorm):
        variance = hidden.var(dim=-1, correction=0)
        return FrozenNorm((variance + norm.eps).rsqrt(), norm.weight, is_centred=True)
    if isinstance(norm, nn.RMSNorm) and norm.eps is not None:
        return FrozenNorm((hidden.square().mean(dim=-1) + norm.eps).rsqrt(), norm.weight)
    if isinstance(norm, nn.Identity):
        return FrozenNorm()
    raise TypeError(f"{type(norm).__name__} is no norm of an encoder: expected LayerNorm, RMSNorm or Identity")


def _whole(input_ids: Tensor) -> Packing:
    """One text without padding, as `packing` would have it; a graph of it has no sizes that depend on values."""
    real = torch.ones_like(input_ids, dtype=torch.bool)
    places = torch.arange(input_ids.shape[1], device=input_ids.device)
    lengths = real.sum(dim=1)
    return Packing(real, places, places[None], lengths, lengths)


def _freeze_layer(
    layer: EncoderLayer, hidden: Tensor, tokens: Packing, terms: PositionTerms, first: Tensor | None
) -> FrozenLayer:
    attention, is_pre = layer.attention, layer.pre_norm
    read = layer.attention_norm(hidden) if is_pre else hidden
    every = torch.ones(1, dtype=torch.bool, device=hidden.device)
    attended, heads = attention(read, tokens, LayerRequest(weights=every, first_values=first), terms)
    assert heads.weights is not None  # noqa: S101 - `eager` gives them
    activation = attention.stream.activation_name
    has_activation = activation != "identity" and attention.num_heads
    middle = hidden + layer.attention_output_norm(attended)
    attention_norm = freeze_norm(layer.attention_norm, hidden if is_pre else middle)
    middle = middle if is_pre else layer.attention_norm(middle)
    expanded = layer.feed_forward_norm(middle) if is_pre else middle
    added = layer.feed_forward(expanded)
    last = middle + layer.feed_forward_output_norm(added)
    return FrozenLayer(
        module=layer,
        hidden=last if is_pre else layer.feed_forward_norm(last),
        weights=_gated(heads.weights, attention.stream.output_gates(read)),
        values=FACTORS[activation](attention.value(read)) if has_activation else None,
        attention_norm=attention_norm,
        attention_output_norm=freeze_norm(layer.attention_output_norm, attended),
        feed_forward=_inner_factors(layer.feed_forward, expanded),
        feed_forward_norm=freeze_norm(layer.feed_forward_norm, middle if is_pre else last),
        feed_forward_output_norm=freeze_norm(layer.feed_forward_output_norm, added),
    )


def _gated(weights: Tensor, gates: Tensor | None) -> Tensor:
    """Weights [1, H, S, S], each query's row times its gates [S, H] -> [H, S, S]."""
    weights = weights.view(weights.shape[1:])
    return weights if gates is None else weights * gates.T[:, :, None]


def _inner_factors(feed_forward: FeedForward, expanded: Tensor) -> Tensor:
    """What the feed-forward's first product is multiplied by; of a gated one its gate, which is fixed as a whole."""
    if feed_forward.gate is not None:
        return feed_forward.activation(feed_forward.gate(expanded))
    return FACTORS[feed_forward.activation_name](feed_forward.up(expanded))


_TANH_CUBE = 0.044715  # of the approximation of GELU (Hendrycks and Gimpel 2016)


def _tanh(z: Tensor) -> Tensor:
    is_zero = z == 0
    return torch.where(is_zero, torch.ones_like(z), torch.tanh(z) / torch.where(is_zero, torch.ones_like(z), z))


FACTORS: Mapping[LayerActivation, Callable[[Tensor], Tensor]] = {
    "identity": torch.ones_like,
    "gelu": lambda z: 0.5 * (1 + torch.erf(z / math.sqrt(2))),
    "gelu_tanh": lambda z: 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + _TANH_CUBE * z * z * z))),
    "relu": lambda z: (z >= 0).to(z.dtype),
    "silu": torch.sigmoid,
    "tanh": _tanh,
}
