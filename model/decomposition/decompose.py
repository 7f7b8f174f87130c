"""The decomposition of one text, from token ids to parts of the hidden states and of the task's output."""

from typing import NamedTuple

import torch
from torch import Tensor

from model.decomposition.frozen import FrozenEncoder, freeze
from model.decomposition.outputs import output_parts, pool
from model.decomposition.parts import Sources
from model.encoder import Encoder, EncoderLayer

DECOMPOSABLE = ("embedding", "classification")


class Decomposition(NamedTuple):
    """What N sources contribute to one text of S tokens.

    Attributes:
        hidden: [S, N, D], parts of `last_hidden_state`.
        output: [N, D'], parts of an embedding's vector or of a classification's logits.
        whole: [D'], the output itself.
        own_shares: [L, tokens], how much of each source token's vector is still its own after each layer, the last
            one's behind the final norm: |own| / (|own| + |rest|) (Kobayashi et al. 2021, section 4.2: one minus the
            mixing ratio). 1 at the start.
    """

    hidden: Tensor
    output: Tensor
    whole: Tensor
    own_shares: Tensor


def decompose(
    encoder: Encoder,
    input_ids: Tensor,
    token_type_ids: Tensor | None = None,
    *,
    tokens: Tensor | None = None,
    with_biases: bool = True,
) -> Decomposition:
    """Decomposes one text.

    Args:
        encoder: an embedder or a classifier, with `eager` attention.
        input_ids: int64 [1, S], no padding.
        token_type_ids: int64 [1, S]; None for all 0.
        tokens: int64, places of the tokens whose parts are wanted; None for all.
        with_biases: whether the biases are one more source. All tokens and the biases add up to the hidden state and
            to the output.

    Raises:
        ValueError: the task gives no vector of a text.
    """
    if encoder.config.task not in DECOMPOSABLE:
        raise ValueError(
            f"task {encoder.config.task} gives no vector of a text: expected one of {', '.join(DECOMPOSABLE)}"
        )
    if tokens is None:
        tokens = torch.arange(input_ids.shape[1], device=input_ids.device)
    frozen, sources = freeze(encoder, input_ids, token_type_ids), Sources(tokens, with_biases)
    parts, shares = _through_layers(encoder, frozen, sources)
    pooled = pool(parts, frozen.last_hidden_state, encoder.config.pooling)
    output = output_parts(encoder, frozen.last_hidden_state, pooled, sources)
    return Decomposition(parts, output, frozen.output, torch.stack(shares))


def _through_layers(encoder: Encoder, frozen: FrozenEncoder, sources: Sources) -> tuple[Tensor, list[Tensor]]:
    parts, first_values, shares = sources.start(frozen.embedded), None, []
    for index, (layer, fixed) in enumerate(zip(encoder.layers, frozen.layers, strict=True)):
        assert isinstance(layer, EncoderLayer)  # noqa: S101 - an encoder holds no others
        parts, values = sources.layer(layer, fixed, parts, first_values)
        hidden = fixed.hidden
        if not index and encoder.config.value_residual:
            first_values = values
        if index == len(frozen.layers) - 1:
            parts, hidden = sources.norm(frozen.final_norm, parts), frozen.last_hidden_state
        shares.append(own_share(sources.own(parts), hidden.index_select(0, sources.tokens)))
    return parts, shares


def own_share(own: Tensor, hidden: Tensor) -> Tensor:
    """How much of vectors is their own, |own| / (|own| + |hidden - own|) of vectors [N, D] -> [N]."""
    length, rest = (torch.linalg.vector_norm(x, dim=-1) for x in (own, hidden - own))
    share: Tensor = length / (length + rest)
    return share
