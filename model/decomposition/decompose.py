"""The decomposition of one text: what each input token contributes to the hidden states and to the task's output.

Parts of every token's vector, one for each source, go through a network whose non-linear steps are fixed:

    X[i, i] = the embedding layer's output of token i                                  at the start, all others 0
    X'[i, k] = sum over h, j of A_h[i, j] (X[j, k] W_V,h) W_O,h + X[i, k]              attention
    X'[i, k] = (X[i, k] - mean of X[i, k]) / sd_i * gamma                              norm
    X'[i, k] = (X[i, k] W_1 * factor_i) W_2 + X[i, k]                                  feed-forward

A source is a token of the input. Parts of all tokens and of the network's biases, which are what is left, add up to the
hidden state at every step (DecompX, Modarressi et al. 2023; its steps: Kobayashi et al. 2021, Ferrando et al. 2022).
Pooling is linear, an activation after it a factor. N is the number of sources; other letters as in `model.config`.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.config import Pooling
from model.config_parts import ClassificationSettings, LayerActivation
from model.decomposition.frozen import FACTORS, FrozenEncoder, freeze, freeze_norm, linear
from model.encoder import Encoder
from model.layers import ACTIVATIONS
from model.tasks import ClassificationLayers, EmbeddingLayers

DECOMPOSABLE = ("embedding", "classification", "token_classification")


class Sources(NamedTuple):
    """Whose parts are computed: of tokens at these places of the text, int64 [N]."""

    tokens: Tensor

    def start(self, embedded: Tensor) -> Tensor:
        """The first parts, from the embedding layer's output [S, D] -> [S, N, D]."""
        places = torch.arange(embedded.shape[0], device=embedded.device)
        is_own = (places[:, None] == self.tokens).to(embedded.dtype)  # [S, N]
        return is_own[:, :, None] * embedded[:, None]

    def own(self, parts: Tensor) -> Tensor:
        """What is left of each token in its own vector: parts [S, N, D] -> [N, D]."""
        return parts[self.tokens, torch.arange(self.tokens.shape[0], device=parts.device)]


class Decomposition(NamedTuple):
    """What N sources contribute to one text of S tokens."""

    hidden: Tensor  # [S, N, D], parts of `last_hidden_state`
    output: Tensor  # [N, D'], parts of an embedding's vector, of a classification's logits or of a token's logits
    whole: Tensor  # [D'], the output itself
    # [L, N], how much of each source token's vector is still its own after each layer, the last one's behind the final
    # norm: |own| / (|own| + |rest|) (Kobayashi et al. 2021, section 4.2: one minus the mixing ratio). 1 at the start.
    own_shares: Tensor


def decompose(
    encoder: Encoder,
    input_ids: Tensor,
    token_type_ids: Tensor | None = None,
    *,
    tokens: Tensor | None = None,
    place: Tensor | None = None,
) -> Decomposition:
    """Decomposes one text.

    Args:
        encoder: an embedder or a classifier, with `eager` attention.
        input_ids: int64 [1, S], no padding.
        token_type_ids: int64 [1, S]; None for all 0.
        tokens: int64, places of the tokens whose parts are wanted; None for all.
        place: int64 [1], of a token classifier: the token whose logits are the output.

    Raises:
        ValueError: the task has no output that can be decomposed, or layers have a part that cannot.
    """
    if not encoder.config.is_decomposable:
        raise ValueError("layers with a third norm, normed values or signals are not decomposed")
    if tokens is None:
        tokens = torch.arange(input_ids.shape[1], device=input_ids.device)
    frozen, sources = freeze(encoder, input_ids, token_type_ids), Sources(tokens)
    parts, shares = _through_layers(encoder, frozen, sources)
    pooled = pool(parts, frozen.last_hidden_state, encoder.config.pooling, place)
    output = output_parts(encoder, frozen.last_hidden_state, pooled, place)
    return Decomposition(parts, output, frozen.output_at(place), torch.stack(shares))


def _through_layers(encoder: Encoder, frozen: FrozenEncoder, sources: Sources) -> tuple[Tensor, list[Tensor]]:
    parts, first_values, shares = sources.start(frozen.embedded), None, []
    for index, layer in enumerate(frozen.layers):
        parts, values = layer.through(parts, first_values)
        hidden = layer.hidden
        if not index and encoder.config.value_residual:
            first_values = values
        if index == len(frozen.layers) - 1:
            parts, hidden = frozen.final_norm.apply(parts), frozen.last_hidden_state
        shares.append(own_share(sources.own(parts), hidden.index_select(0, sources.tokens)))
    return parts, shares


def own_share(own: Tensor, hidden: Tensor) -> Tensor:
    """How much of vectors is their own, |own| / (|own| + |hidden - own|) of vectors [N, D] -> [N]."""
    length, rest = (torch.linalg.vector_norm(x, dim=-1) for x in (own, hidden - own))
    share: Tensor = length / (length + rest)
    return share


def output_parts(encoder: Encoder, hidden: Tensor, pooled_parts: Tensor, place: Tensor | None) -> Tensor:
    """Parts of the task's output, [N, D'].

    They are made of parts [N, D] of what pooling makes of `last_hidden_state [S, D]`, or of the token at `place`.
    """
    layers, config = encoder.task_layers, encoder.config
    pooled = pool(hidden[:, None], hidden, config.pooling, place)[0]
    if isinstance(layers, EmbeddingLayers):
        for module, described in zip(layers.projections, config.projections, strict=True):
            assert isinstance(module, nn.Linear)  # noqa: S101 - an embedding's layers hold no others
            pooled_parts = _dense(module, described.activation, pooled, pooled_parts)
            pooled = ACTIVATIONS[described.activation](module(pooled))
        return pooled_parts
    if isinstance(layers, ClassificationLayers) and isinstance(config.task_settings, ClassificationSettings):
        if layers.dense is not None and (activation := config.task_settings.dense_activation) is not None:
            pooled_parts = _dense(layers.dense, activation, pooled, pooled_parts)
            pooled = layers.activation(layers.dense(pooled))
        return linear(layers.output, freeze_norm(layers.norm, pooled).apply(pooled_parts))
    raise ValueError(f"the output of task {config.task} is not decomposed")


def pool(parts: Tensor, hidden: Tensor, pooling: Pooling, place: Tensor | None = None) -> Tensor:
    """[S, N, D] -> [N, D], or the token's at `place`, int64 [1].

    A maximum takes each dimension of the token that wins it in `hidden [S, D]`.
    """
    if place is not None:
        return parts.index_select(0, place)[0]
    if pooling == "mean":
        return parts.mean(dim=0)
    if pooling == "max":
        winners = hidden.argmax(dim=0).expand(1, *parts.shape[1:])  # [1, N, D]
        return parts.gather(0, winners)[0]
    return parts[0 if pooling == "cls" else -1]


def _dense(module: nn.Linear, activation: LayerActivation, pooled: Tensor, parts: Tensor) -> Tensor:
    return linear(module, parts) * FACTORS[activation](module(pooled))
