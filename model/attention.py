"""Multi-head attention, once.

The module knows projections and heads; it does not know where in a network it stands. Shape letters as in
`model.config`: B batch, S sequence, D hidden, H heads, K = d_k, V = d_v.
"""

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from model.dot_product import IMPLEMENTATIONS, AttentionInputs, Implementation
from model.head_gates import HeadOutputs, LayerRequest, pack_gated
from model.packing import Packing
from model.positions import PositionTerms
from model.value_norms import output_rows, value_norms
from model.value_stream import ValueStream

NO_TERMS = PositionTerms()


class Heads(Protocol):
    """What `attend` reads of the module whose heads attend."""

    num_heads: int
    scale: float
    implementation: Implementation

    @property
    def null_context(self) -> Tensor | None:
        """As `MultiHeadAttention.null_context`."""
        ...

    def output_factor(self) -> Tensor:
        """As `MultiHeadAttention.output_factor`."""
        ...


def attend(
    heads: Heads,
    projected: tuple[Tensor, Tensor, Tensor],
    tokens: Packing,
    request: LayerRequest,
    bias: Tensor | None,
) -> tuple[Tensor, HeadOutputs]:
    """Attention within each text of a packed batch, between the projections.

    Args:
        heads: the module.
        projected: queries and keys [T, H*K], values [T, H*V].
        tokens: where they stand in the batch.
        request: what is asked of the heads, and the gates on them.
        bias: [1, H or 1, S, S], added to the scores; None for none.

    Returns:
        The context [T, H*V], each head multiplied by its gate, and the heads' own outputs.
    """
    query, key, value = map(tokens.pad, projected)
    context, weights = IMPLEMENTATIONS[heads.implementation](
        AttentionInputs(query, key, value, tokens.lengths, request.weights, heads.num_heads, heads.scale, bias)
    )
    norms = None
    if request.value_norms is not None:
        norms = value_norms(value, heads.null_context, heads.output_factor(), request.value_norms)
    packed = pack_gated(context, tokens, request, heads.null_context, num_heads=heads.num_heads)
    return packed, HeadOutputs(weights, norms)


class MultiHeadAttention(nn.Module):
    """Projections to H heads, attention, and the projection back to the residual stream.

    Head h owns columns [h*K, (h+1)*K) of `query` and `key`, [h*V, (h+1)*V) of `value`, and the same rows of `output`.
    With no head left the layer adds its output bias, which is 0 where the family has none.
    """

    null_context: Tensor | None  # [H*V], the context that adds nothing, where that is not 0
    output_bias: Tensor  # [D], where no head is left
    value_factor: Tensor | None  # [H, V, R], in place of the output's rows where norms are computed

    def __init__(
        self,
        *,
        hidden_size: int,
        num_heads: int,
        d_k: int,
        d_v: int,
        bias: bool = True,
        output_bias: bool = True,
        stream: ValueStream | None = None,
    ) -> None:
        super().__init__()
        self.stream = stream or ValueStream(hidden_size=hidden_size, num_heads=num_heads)
        self.num_heads = num_heads
        self.scale = 1 / math.sqrt(d_k)
        self.implementation: Implementation = "sdpa"
        self.register_buffer("null_context", None, persistent=False)
        self.register_buffer("value_factor", None, persistent=False)
        if num_heads:
            self.query = nn.Linear(hidden_size, num_heads * d_k, bias=bias)
            self.key = nn.Linear(hidden_size, num_heads * d_k, bias=bias)
            self.value = nn.Linear(hidden_size, num_heads * d_v, bias=bias)
            self.output = nn.Linear(num_heads * d_v, hidden_size, bias=output_bias)
        else:
            self._add_output_bias(torch.zeros(hidden_size), is_trained=output_bias)

    def _add_output_bias(self, zeros: Tensor, *, is_trained: bool) -> None:
        """What a layer without heads adds; no parameter where the family has none, so that training leaves it 0."""
        if is_trained:
            self.output_bias = nn.Parameter(zeros)
        else:
            self.register_buffer("output_bias", zeros)

    def forward(
        self, hidden: Tensor, tokens: Packing, request: LayerRequest, terms: PositionTerms = NO_TERMS
    ) -> tuple[Tensor, HeadOutputs]:
        """Attention within each text of a packed batch.

        Args:
            hidden: [T, D], the real tokens.
            tokens: where they stand in the batch.
            request: what is asked of the heads, and the gates on them.
            terms: what positions change here.

        Returns:
            [T, D] to be added to the residual stream, and the heads' own outputs.
        """
        if not self.num_heads:
            return self.output_bias.expand_as(hidden), no_heads(hidden, request)
        query, key = self.query(hidden), self.key(hidden)  # [T, H*K]
        if terms.rotation is not None:
            query, key = (terms.rotation.turn(x, self.num_heads) for x in (query, key))
        value = self.values(hidden, request.first_values) if request.values is None else request.values
        request = self.stream.drop_heads(request, tokens.lengths)
        context, heads = attend(self, (query, key, value), tokens, request, terms.bias)
        return self.output(self.stream.apply_output_gate(context, hidden)), heads

    def values(self, hidden: Tensor, first_values: Tensor | None = None) -> Tensor:
        """What attention weighs, [T, D] -> [T, H*V]; `first_values` are the first layer's, for a value residual."""
        return self.stream.values(self.value(hidden), first_values)

    def output_factor(self) -> Tensor:
        """Maps values to what a head adds, [H, V, D]; or `value_factor`, which gives vectors of the same length."""
        if self.value_factor is not None:
            return self.value_factor
        return output_rows(self.output.weight, self.num_heads)


def no_heads(hidden: Tensor, request: LayerRequest) -> HeadOutputs:
    """The heads' outputs of a layer without heads."""
    return HeadOutputs(hidden.new_zeros(0, 0, 0, 0), None if request.value_norms is None else hidden.new_zeros(0, 0, 0))
