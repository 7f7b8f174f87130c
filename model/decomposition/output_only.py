"""Parts of the output and own shares, as `decompose` gives them, with fewer products; what the graph computes.

- In the first layer a source has one vector, its own. Behind attention its parts are combinations of 1 + H vectors,
  itself and what each head makes of it, so the projections act on these instead of S * N rows.
- In the last layer only the pooled vector and each token's own part are wanted. A mean is taken before the last
  product; of one token's vector the whole layer is computed for that token and the own parts alone.

Letters as in `model.decomposition.decompose`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from model.config import Pooling
from model.decomposition.decompose import Sources, output_parts, own_share, pool
from model.decomposition.frozen import FrozenEncoder, FrozenLayer, FrozenNorm, freeze
from model.encoder import Encoder, EncoderLayer


class OutputParts(NamedTuple):
    """What N tokens contribute to one text's output; see `Decomposition`."""

    output: Tensor  # [N, D']
    whole: Tensor  # [D']
    own_shares: Tensor  # [L, N]


def decompose_output(
    encoder: Encoder,
    input_ids: Tensor,
    token_type_ids: Tensor | None = None,
    *,
    tokens: Tensor,
    place: Tensor | None = None,
) -> OutputParts:
    """Decomposes one text's output, without the hidden states behind it; arguments are those of `decompose`."""
    frozen, sources = freeze(encoder, input_ids, token_type_ids), Sources(tokens)
    pooled, shares = _through_layers(encoder, frozen, sources, place)
    output = output_parts(encoder, frozen.last_hidden_state, pooled, sources, place)
    return OutputParts(output, frozen.output_at(place), torch.stack(shares))


def _through_layers(
    encoder: Encoder, frozen: FrozenEncoder, sources: Sources, place: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """Parts of the pooled vector [N, D], or of the token's at `place`, and own shares [N] of each layer."""
    layers = [layer for layer in encoder.layers if isinstance(layer, EncoderLayer)]
    parts, first_values, shares = sources.start(frozen.embedded), None, list[Tensor]()
    for index, (layer, fixed) in enumerate(zip(layers[:-1], frozen.layers, strict=False)):
        if index:
            parts, _ = sources.layer(layer, fixed, parts, first_values)
        else:
            parts, values = first_layer(layer, fixed, frozen.embedded, sources)
            first_values = values if encoder.config.value_residual else None
        shares.append(own_share(sources.own(parts), fixed.hidden[sources.tokens]))
    last = LastLayer(layers[-1], frozen, sources)
    pooled, own = last.pooled_and_own(parts, first_values, encoder.config.pooling, place)
    return pooled, [*shares, own_share(own, frozen.last_hidden_state[sources.tokens])]


def first_layer(
    layer: EncoderLayer, frozen: FrozenLayer, embedded: Tensor, sources: Sources
) -> tuple[Tensor, Tensor | None]:
    """The first layer, from the embedding layer's output [S, D]; as `Sources.layer`.

    The part of token i from source k is sum over m of factors[k, i, m] vectors[k, m], where m is the source itself or
    one of H heads.
    """
    start = sources.start(embedded)  # [S, N, D]
    vectors, factors = embedded[sources.tokens][:, None], _is_own(embedded, sources)  # [N, 1, D], [N, S, 1]
    read = sources.norm(frozen.attention_norm, start) if layer.pre_norm else start
    values = None
    if layer.attention.num_heads:
        taken, weights, values = _heads(layer, frozen, sources.own(read), sources)
        vectors, factors = torch.cat((vectors, taken), dim=1), torch.cat((factors, weights), dim=2)
    if not layer.pre_norm:
        vectors, factors = _normed(frozen.attention_norm, vectors, factors, sources)
    middle = factors @ vectors  # [N, S, D]
    if layer.pre_norm:
        vectors, factors = _normed(frozen.feed_forward_norm, vectors, factors, sources)
    up = sources.linear(layer.feed_forward.up, vectors)  # [N, 1 + H, intermediate]
    added = sources.linear(layer.feed_forward.down, factors @ up * frozen.feed_forward)
    parts = sources.after_feed_forward(layer, frozen, middle.transpose(0, 1), added.transpose(0, 1))
    return parts, None if values is None else _is_own(embedded, sources).transpose(0, 1) * values


def _heads(layer: EncoderLayer, frozen: FrozenLayer, read: Tensor, sources: Sources) -> tuple[Tensor, Tensor, Tensor]:
    """What heads make of the sources' vectors, how much each token takes, values: [N, H, D], [N, S, H], [N, G*V]."""
    attention, tokens = layer.attention, sources.tokens
    values = sources.linear(attention.value, read)
    values = values if frozen.values is None else values * frozen.values[tokens]
    of_heads = attention.per_query_head(values).view(tokens.shape[0], attention.num_heads, -1)  # [N, H, V]
    taken = (of_heads.transpose(0, 1) @ attention.output_factor()).transpose(0, 1)  # [N, H, D]
    norm = frozen.attention_output_norm
    weights = norm.times_reciprocal(frozen.weights[:, :, tokens].permute(2, 0, 1)).transpose(1, 2)  # [N, S, H]
    return sources.norm(norm.undivided(), taken), weights, values


def _normed(norm: FrozenNorm, vectors: Tensor, factors: Tensor, sources: Sources) -> tuple[Tensor, Tensor]:
    """A norm on combinations: its linear map on their vectors [N, M, D], its deviations in their factors [N, S, M]."""
    divided = norm.times_reciprocal(factors.transpose(1, 2)).transpose(1, 2)
    return sources.norm(norm.undivided(), vectors), divided


def _is_own(embedded: Tensor, sources: Sources) -> Tensor:
    """1 where a token is the source, [N, S, 1]."""
    places = torch.arange(embedded.shape[0], device=embedded.device)
    return (sources.tokens[:, None] == places).to(embedded.dtype)[:, :, None]


class LastLayer(NamedTuple):
    """The last layer and the norm behind it."""

    layer: EncoderLayer
    frozen: FrozenEncoder
    sources: Sources

    def pooled_and_own(
        self, parts: Tensor, first_values: Tensor | None, pooling: Pooling, place: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Parts before the layer, [S, N, D] -> parts of the pooled vector or of a token, and own parts, [N, D] each."""
        layer, fixed, sources = self.layer, self.frozen.layers[-1], self.sources
        if place is None and pooling == "max":
            whole, _ = sources.layer(layer, fixed, parts, first_values)
            last = sources.norm(self.frozen.final_norm, whole)
            return pool(last, self.frozen.last_hidden_state, pooling), sources.own(last)
        read = sources.norm(fixed.attention_norm, parts) if layer.pre_norm else parts
        values = sources.values(layer, fixed, read, first_values)
        if place is None and pooling == "mean":
            attended = sources.attended(layer, fixed, read, values)
            rows = self._mean_and_own(sources.after_attention(layer, fixed, parts, attended))
        else:
            tokens = torch.arange(parts.shape[0], device=parts.device)
            one = place if place is not None else tokens[:1] if pooling == "cls" else tokens[-1:]
            rows = self._one_token_and_own(parts, values, one)
        return rows[0], rows[1]

    def _mean_and_own(self, middle: Tensor) -> Tensor:
        """The mean over all tokens, and own parts, [2, N, D]; from the parts behind attention, [S, N, D].

        All after the feed-forward's first product is linear and, but for deviations of norms, alike for each token.
        """
        layer, fixed, sources = self.layer, self.frozen.layers[-1], self.sources
        factors = self.frozen.final_norm.times_reciprocal(middle.new_ones(middle.shape[0]))  # [S]
        if not layer.pre_norm:
            factors = fixed.feed_forward_norm.times_reciprocal(factors)
        inner_factors = fixed.feed_forward_output_norm.times_reciprocal(factors)
        inner = self._weighed(sources.inner(layer, fixed, middle), inner_factors)
        alike = fixed._replace(
            feed_forward_norm=fixed.feed_forward_norm.undivided(),
            feed_forward_output_norm=fixed.feed_forward_output_norm.undivided(),
        )
        added = sources.linear(layer.feed_forward.down, inner)
        last = sources.after_feed_forward(layer, alike, self._weighed(middle, factors), added)
        return sources.norm(self.frozen.final_norm.undivided(), last)

    def _weighed(self, x: Tensor, factors: Tensor) -> Tensor:
        """[S, N, C], each token times its factor [S]: the mean over tokens and the own parts, [2, N, C]."""
        size, count, _ = x.shape
        mean = (factors[None] / size @ x.reshape(size, -1)).view(count, -1)
        return torch.stack((mean, self.sources.own(x) * factors[self.sources.tokens][:, None]))

    def _one_token_and_own(self, parts: Tensor, values: Tensor | None, place: Tensor) -> Tensor:
        """The parts of the token at `place`, and own parts, [2, N, D]; from the parts before the layer, [S, N, D]."""
        layer, fixed, sources = self.layer, self.frozen.layers[-1], self.sources
        places = torch.stack((place.expand_as(sources.tokens), sources.tokens))  # [2, N]
        before = torch.stack((parts.index_select(0, place)[0], sources.own(parts)))
        attended = torch.zeros_like(before)
        if values is not None:
            size, count, _ = values.shape
            of_heads = layer.attention.per_query_head(values).view(size, count, layer.attention.num_heads, -1)
            weights = fixed.weights[:, places].permute(2, 0, 1, 3)  # [N, H, 2, S]
            context = (weights @ of_heads.permute(1, 2, 0, 3)).permute(2, 0, 1, 3)  # [2, N, H, V]
            attended = sources.linear(layer.attention.output, context.flatten(2))
        at_places = fixed.at(places)
        middle = sources.after_attention(layer, at_places, before, attended)
        added = sources.linear(layer.feed_forward.down, sources.inner(layer, at_places, middle))
        last = sources.after_feed_forward(layer, at_places, middle, added)
        return sources.norm(self.frozen.final_norm.at(places), last)
