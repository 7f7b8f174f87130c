"""Multi-head attention, once.

The module knows projections and heads; it does not know where in a network it stands. Shape letters as in
`model.config`: B batch, S sequence, D hidden, H heads, G key and value heads, K = d_k, V = d_v.
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
    def attended_heads(self) -> int:
        """Key and value heads that attention is given; H is a multiple of it."""
        ...

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
    terms: PositionTerms,
) -> tuple[Tensor, HeadOutputs]:
    """Attention within each text of a packed batch, between the projections.

    Args:
        heads: the module.
        projected: queries [T, H*K], keys [T, G*K] and values [T, G*V] of `attended_heads` G.
        tokens: where they stand in the batch.
        request: what is asked of the heads, and the gates on them.
        terms: what positions add to the scores; queries and keys are turned already.

    Returns:
        The context [T, H*V], each head multiplied by its gate, and the heads' own outputs.
    """
    query, key, value = map(tokens.pad, projected)
    context, weights = IMPLEMENTATIONS[heads.implementation](
        AttentionInputs(
            query,
            key,
            value,
            tokens.lengths,
            request.weights,
            heads.num_heads,
            heads.scale,
            terms.bias,
            heads.attended_heads,
            terms.window,
        )
    )
    norms = None
    if request.value_norms is not None:
        norms = value_norms(value, heads.null_context, heads.output_factor(), request.value_norms)
    packed = pack_gated(context, tokens, request, heads.null_context, num_heads=heads.num_heads)
    return packed, HeadOutputs(weights, norms)


class MultiHeadAttention(nn.Module):
    """Projections to H heads, attention, and the projection back to the residual stream.

    Head h owns columns [h*K, (h+1)*K) of `query` and rows [h*V, (h+1)*V) of `output`; key and value head g owns columns
    [g*K, (g+1)*K) of `key` and [g*V, (g+1)*V) of `value`. With no head left the layer adds its output bias, which is 0
    where the family has none.
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
        groups: tuple[int, ...] | None = None,
        scale: float | None = None,
        norm_eps: float | None = None,
        bias: bool = True,
        output_bias: bool = True,
        stream: ValueStream | None = None,
    ) -> None:
        """Builds the projections.

        Args:
            hidden_size: D.
            num_heads: H.
            d_k: K.
            d_v: V.
            groups: query heads that read each key and value head; None: each has its own.
            scale: factor on the scores; None: 1 / sqrt(K).
            norm_eps: epsilon of the norms of query and key heads; None: they are not normed.
            bias: whether queries, keys and values have biases.
            output_bias: whether the output has one.
            stream: what happens to the values.
        """
        super().__init__()
        self.stream = stream or ValueStream(hidden_size=hidden_size, num_heads=num_heads)
        self.num_heads = num_heads
        self.groups = groups or (1,) * num_heads
        self.scale = 1 / math.sqrt(d_k) if scale is None else scale
        self.implementation: Implementation = "sdpa"
        self.register_buffer("null_context", None, persistent=False)
        self.register_buffer("value_factor", None, persistent=False)
        if num_heads:
            self.query = nn.Linear(hidden_size, num_heads * d_k, bias=bias)
            self.key = nn.Linear(hidden_size, len(self.groups) * d_k, bias=bias)
            self.value = nn.Linear(hidden_size, len(self.groups) * d_v, bias=bias)
            self.output = nn.Linear(num_heads * d_v, hidden_size, bias=output_bias)
            if norm_eps is not None:
                self.query_norm: nn.RMSNorm | None = nn.RMSNorm(d_k, eps=norm_eps)
                self.key_norm: nn.RMSNorm | None = nn.RMSNorm(d_k, eps=norm_eps)
            else:
                self.query_norm = self.key_norm = None
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
        query = _norm_and_turn(self.query(hidden), self.num_heads, self.query_norm, terms)  # [T, H*K]
        key = _norm_and_turn(self.key(hidden), len(self.groups), self.key_norm, terms)  # [T, G*K]
        value = self.values(hidden, request.first_values) if request.values is None else request.values
        request = self.stream.drop_heads(request, tokens.lengths)
        projected = query, self._for_attention(key), self._for_attention(value)
        context, heads = attend(self, projected, tokens, request, terms)
        return self.output(self.stream.apply_output_gate(context, hidden)), heads

    def values(self, hidden: Tensor, first_values: Tensor | None = None) -> Tensor:
        """What attention weighs, [T, D] -> [T, G*V]; `first_values` are the first layer's, for a value residual."""
        return self.stream.values(self.value(hidden), first_values)

    @property
    def attended_heads(self) -> int:
        """Key and value heads that attention is given: G, or H where groups differ in size, which no kernel takes."""
        return len(self.groups) if len(set(self.groups)) == 1 else self.num_heads

    def per_query_head(self, x: Tensor) -> Tensor:
        """[..., G*C] of key and value heads -> [..., H*C], each as often as query heads read it."""
        if len(self.groups) == self.num_heads:
            return x
        read = [head for head, size in enumerate(self.groups) for _ in range(size)]
        return x.view(*x.shape[:-1], len(self.groups), -1)[..., read, :].flatten(-2)

    def _for_attention(self, x: Tensor) -> Tensor:
        """Keys or values [T, G*C] with `attended_heads` heads."""
        return self.per_query_head(x) if self.attended_heads == self.num_heads else x

    def output_factor(self) -> Tensor:
        """Maps values to what a head adds, [H, V, D]; or `value_factor`, which gives vectors of the same length."""
        if self.value_factor is not None:
            return self.value_factor
        return output_rows(self.output.weight, self.num_heads)


def _norm_and_turn(x: Tensor, num_heads: int, norm: nn.Module | None, terms: PositionTerms) -> Tensor:
    """Queries or keys [T, heads*K], each head normed and then turned by its position."""
    if norm is not None:
        x = norm(x.view(*x.shape[:-1], num_heads, -1)).flatten(-2)
    return x if terms.rotation is None else terms.rotation.turn(x, num_heads)


def no_heads(hidden: Tensor, request: LayerRequest) -> HeadOutputs:
    """The heads' outputs of a layer without heads."""
    return HeadOutputs(hidden.new_zeros(0, 0, 0, 0), None if request.value_norms is None else hidden.new_zeros(0, 0, 0))
