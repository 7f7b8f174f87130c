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
from model.decomposition.frozen import FrozenEncoder, FrozenLayer, FrozenNorm, freeze, linear
from model.encoder import Encoder


class OutputParts(NamedTuple):
    """What N tokens contribute to one text's output; see `Decomposition`."""

    output: Tensor  # [N, D']
    whole: Tensor  # [D']
    own_shares: Tensor  # [L, N]


def decompose_output(
    encoder: Encoder,
    input_ids: Tensor,
    token_type_ids: Tensor | None,
    *,
    tokens: Tensor,
    place: Tensor | None = None,
) -> OutputParts:
    """Decomposes one text's output, without the hidden states behind it; arguments are those of `decompose`."""
    frozen, sources = freeze(encoder, input_ids, token_type_ids), Sources(tokens)
    pooled, shares = _through_layers(encoder, frozen, sources, place)
    output = output_parts(encoder, frozen.last_hidden_state, pooled, place)
    return OutputParts(output, frozen.output_at(place), torch.stack(shares))


def _through_layers(
    encoder: Encoder, frozen: FrozenEncoder, sources: Sources, place: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """Parts of the pooled vector [N, D], or of the token's at `place`, and own shares [N] of each layer."""
    parts, first_values, shares = sources.start(frozen.embedded), None, list[Tensor]()
    for index, layer in enumerate(frozen.layers[:-1]):
        if index:
            parts, _ = layer.through(parts, first_values)
        else:
            parts, values = first_layer(layer, frozen.embedded, sources)
            first_values = values if encoder.config.value_residual else None
        shares.append(own_share(sources.own(parts), layer.hidden[sources.tokens]))
    pooled, own = last_layer(frozen, sources, parts, first_values, pooling=encoder.config.pooling, place=place)
    return pooled, [*shares, own_share(own, frozen.last_hidden_state[sources.tokens])]


def first_layer(layer: FrozenLayer, embedded: Tensor, sources: Sources) -> tuple[Tensor, Tensor | None]:
    """The first layer, from the embedding layer's output [S, D]; as `FrozenLayer.through`.

    The part of token i from source k is sum over m of factors[k, i, m] vectors[k, m], where m is the source itself or
    one of H heads.
    """
    is_pre, inner = layer.module.pre_norm, layer.module.feed_forward
    vectors, factors = embedded[sources.tokens][:, None], _is_own(embedded, sources)  # [N, 1, D], [N, S, 1]
    values = None
    if layer.module.attention.num_heads:
        taken, weights, values = _heads(layer, sources.own(layer.read(sources.start(embedded))), sources)
        vectors, factors = torch.cat((vectors, taken), dim=1), torch.cat((factors, weights), dim=2)
    if not is_pre:
        vectors, factors = _normed(layer.attention_norm, vectors, factors)
    middle = factors @ vectors  # [N, S, D]
    if is_pre:
        vectors, factors = _normed(layer.feed_forward_norm, vectors, factors)
    added = linear(inner.down, factors @ linear(inner.up, vectors) * layer.feed_forward)
    parts = layer.after_feed_forward(middle.transpose(0, 1), added.transpose(0, 1))
    return parts, None if values is None else _is_own(embedded, sources).transpose(0, 1) * values


def _heads(layer: FrozenLayer, read: Tensor, sources: Sources) -> tuple[Tensor, Tensor, Tensor]:
    """What heads make of the sources' vectors, how much each token takes, values: [N, H, D], [N, S, H], [N, G*V]."""
    attention, tokens = layer.module.attention, sources.tokens
    values = linear(attention.value, read)
    values = values if layer.values is None else values * layer.values[tokens]
    of_heads = attention.per_query_head(values).view(tokens.shape[0], attention.num_heads, -1)  # [N, H, V]
    taken = (of_heads.transpose(0, 1) @ attention.output_factor()).transpose(0, 1)  # [N, H, D]
    norm = layer.attention_output_norm
    weights = norm.times_reciprocal(layer.weights[:, :, tokens].permute(2, 0, 1)).transpose(1, 2)  # [N, S, H]
    return norm.undivided().apply(taken), weights, values


def _normed(norm: FrozenNorm, vectors: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """A norm on combinations: its linear map on their vectors [N, M, D], its deviations in their factors [N, S, M]."""
    return norm.undivided().apply(vectors), norm.times_reciprocal(factors.transpose(1, 2)).transpose(1, 2)


def _is_own(embedded: Tensor, sources: Sources) -> Tensor:
    """1 where a token is the source, [N, S, 1]."""
    places = torch.arange(embedded.shape[0], device=embedded.device)
    return (sources.tokens[:, None] == places).to(embedded.dtype)[:, :, None]


def last_layer(
    frozen: FrozenEncoder,
    sources: Sources,
    parts: Tensor,
    first_values: Tensor | None,
    *,
    pooling: Pooling,
    place: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The last layer and the norm behind it, from the parts before them [S, N, D].

    Gives parts [N, D] of the pooled vector, or of the token's at `place`, and own parts.
    """
    layer = frozen.layers[-1]
    if place is None and pooling == "max":
        last = frozen.final_norm.apply(layer.through(parts, first_values)[0])
        return pool(last, frozen.last_hidden_state, pooling), sources.own(last)
    read = layer.read(parts)
    values = layer.weighed(read, first_values)
    if place is None and pooling == "mean":
        rows = _mean_and_own(frozen, sources, layer.after_attention(parts, layer.attended(read, values)))
    else:
        tokens = torch.arange(parts.shape[0], device=parts.device)
        one = place if place is not None else tokens[:1] if pooling == "cls" else tokens[-1:]
        rows = _one_token_and_own(frozen, sources, parts, values, one)
    return rows[0], rows[1]


def _mean_and_own(frozen: FrozenEncoder, sources: Sources, middle: Tensor) -> Tensor:
    """The mean over all tokens, and own parts, [2, N, D]; from the parts behind attention, [S, N, D].

    All after the feed-forward's first product is linear and, but for deviations of norms, alike for each token.
    """
    layer, size = frozen.layers[-1], middle.shape[0]
    factors = frozen.final_norm.times_reciprocal(middle.new_ones(size))  # [S]
    if not layer.module.pre_norm:
        factors = layer.feed_forward_norm.times_reciprocal(factors)

    def weighed(x: Tensor, factors: Tensor) -> Tensor:
        """[S, N, C], each token times its factor [S]: the mean over tokens and the own parts, [2, N, C]."""
        mean = (factors[None] / size @ x.reshape(size, -1)).view(x.shape[1], -1)
        return torch.stack((mean, sources.own(x) * factors[sources.tokens][:, None]))

    inner = weighed(layer.inner(middle), layer.feed_forward_output_norm.times_reciprocal(factors))
    alike = layer._replace(
        feed_forward_norm=layer.feed_forward_norm.undivided(),
        feed_forward_output_norm=layer.feed_forward_output_norm.undivided(),
    )
    last = alike.after_feed_forward(weighed(middle, factors), linear(layer.module.feed_forward.down, inner))
    return frozen.final_norm.undivided().apply(last)


def _one_token_and_own(
    frozen: FrozenEncoder, sources: Sources, parts: Tensor, values: Tensor | None, place: Tensor
) -> Tensor:
    """The parts of the token at `place`, and own parts, [2, N, D]; from the parts before the layer, [S, N, D]."""
    layer, attention = frozen.layers[-1], frozen.layers[-1].module.attention
    places = torch.stack((place.expand_as(sources.tokens), sources.tokens))  # [2, N]
    before = torch.stack((parts.index_select(0, place)[0], sources.own(parts)))
    attended = torch.zeros_like(before)
    if values is not None:
        of_heads = attention.per_query_head(values).view(*values.shape[:2], attention.num_heads, -1)
        weights = layer.weights[:, places].permute(2, 0, 1, 3)  # [N, H, 2, S]
        context = (weights @ of_heads.permute(1, 2, 0, 3)).permute(2, 0, 1, 3)  # [2, N, H, V]
        attended = linear(attention.output, context.flatten(2))
    there = layer.at(places)
    middle = there.after_attention(before, attended)
    last = there.after_feed_forward(middle, linear(layer.module.feed_forward.down, there.inner(middle)))
    return frozen.final_norm.at(places).apply(last)
