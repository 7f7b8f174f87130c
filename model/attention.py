"""Multi-head attention: projections, scaled dot products in three interchangeable implementations, and back.

`eager` is the reference and returns weights, `sdpa` is PyTorch's fused kernels, `onnx` emits the fused operator of a
graph. The module does not know where in a network it stands. Shape letters as in `model.config`: B batch, S sequence,
D hidden, H heads, G key and value heads, K = d_k, V = d_v.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.packing import Packing, real_tokens
from model.positions import HALF_BLOCK, LONGEST_DENSE, PositionTable, PositionTerms, Window, shifted
from model.value_stream import (
    FUNCTIONS_DOMAIN,
    FUNCTIONS_VERSION,
    HeadOutputs,
    LayerRequest,
    ValueStream,
    output_rows,
    pack_gated,
    split_heads,
    value_norms,
)

Implementation = Literal["eager", "sdpa", "onnx"]
FUSED_OP = "Attention"
FUSED_OP_VERSION = 24
WEIGHTS_OP = "AttentionWeights"
BIASED_WEIGHTS_OP = "BiasedAttentionWeights"
LOCAL_ATTENTION_OP = "LocalAttention"
NO_TERMS = PositionTerms()


class MultiHeadAttention(nn.Module):
    """Projections to H heads, attention, and the projection back to the residual stream.

    Head h owns columns [h*K, (h+1)*K) of `query` and rows [h*V, (h+1)*V) of `output`; key and value head g owns columns
    [g*K, (g+1)*K) of `key` and [g*V, (g+1)*V) of `value`. With no head left the layer adds its output bias, which is 0
    where the family has none.
    """

    null_context: Tensor | None  # [H*V], the context that adds nothing, if that is not 0
    output_bias: Tensor  # [D], where no head is left
    query_norm: nn.Module | None
    key_norm: nn.Module | None
    value_factor: Tensor | None  # [H, V, R], instead of the output's rows where norms are computed

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
        norms_whole: bool = False,
        value_norm_eps: float | None = None,
        bias: bool = True,
        output_bias: bool = True,
        stream: ValueStream | None = None,
        position_scores: Collection[str] = (),
        distance_rows: int = 0,
    ) -> None:
        """Builds the projections.

        Args:
            hidden_size: D.
            num_heads: H.
            d_k: K.
            d_v: V.
            groups: query heads that read each key and value head; None: each has its own.
            scale: factor on the scores; None: 1 / sqrt(K).
            norm_eps: epsilon of the norms of queries and keys; None: they are not normed.
            norms_whole: whether these are LayerNorms over all heads together, instead of an RMSNorm a head.
            value_norm_eps: epsilon of an RMSNorm without weights of every value head; None: they are not normed.
            bias: whether queries, keys and values have biases.
            output_bias: whether the output has one.
            stream: what happens to the values.
            position_scores: as `EncoderConfig.position_scores`.
            distance_rows: rows of the tables of distances that these need.
        """
        super().__init__()
        self.stream = stream or ValueStream(hidden_size=hidden_size, num_heads=num_heads)
        self.num_heads = num_heads
        self.groups = groups or (1,) * num_heads
        self.scale = 1 / math.sqrt(d_k) if scale is None else scale
        self.implementation: Implementation = "sdpa"
        self.register_buffer("null_context", None, persistent=False)
        self.register_buffer("value_factor", None, persistent=False)
        scores, width = position_scores if num_heads else (), num_heads * d_k
        self.position_key = PositionTable(width, distance_rows) if "content_to_position" in scores else None
        self.position_query = PositionTable(width, distance_rows) if "position_to_content" in scores else None
        self.value_norm = None if value_norm_eps is None else nn.RMSNorm(d_v, value_norm_eps, elementwise_affine=False)
        if num_heads:
            self.query = nn.Linear(hidden_size, num_heads * d_k, bias=bias)
            self.key = nn.Linear(hidden_size, len(self.groups) * d_k, bias=bias)
            self.value = nn.Linear(hidden_size, len(self.groups) * d_v, bias=bias)
            self.output = nn.Linear(num_heads * d_v, hidden_size, bias=output_bias)
            self.query_norm = _norm(num_heads, d_k, norm_eps, is_whole=norms_whole)
            self.key_norm = _norm(len(self.groups), d_k, norm_eps, is_whole=norms_whole)
        elif output_bias:
            self.output_bias = nn.Parameter(torch.zeros(hidden_size))
        else:  # no parameter where the family has none, so that training leaves it 0
            self.register_buffer("output_bias", torch.zeros(hidden_size))

    def forward(
        self, hidden: Tensor, tokens: Packing, request: LayerRequest, terms: PositionTerms = NO_TERMS
    ) -> tuple[Tensor, HeadOutputs]:
        """Attention within each text of a packed batch, [T, D] -> [T, D], and the heads' own outputs."""
        if not self.num_heads:
            return self.output_bias.expand_as(hidden), no_heads(hidden, request)
        query = _norm_and_turn(self.query(hidden), self.num_heads, self.query_norm, terms)  # [T, H*K]
        key = _norm_and_turn(self.key(hidden), len(self.groups), self.key_norm, terms)  # [T, G*K]
        value = self.values(hidden, request.first_values) if request.values is None else request.values
        request = self.stream.drop_heads(request, tokens.lengths)
        projected = query, self._for_attention(key), self._for_attention(value)
        if terms.distances is not None:
            terms = terms._replace(bias=self._disentangled(query, key, tokens, terms.distances))
        context, heads = attend(self, projected, tokens, request, terms)
        return self.output(self.stream.apply_output_gate(context, hidden)), heads

    def _disentangled(self, query: Tensor, key: Tensor, tokens: Packing, distances: Tensor) -> Tensor:
        """What distances add to the scores, [B, H, S, S], from queries and keys [T, H*K]."""
        query, key = (split_heads(tokens.pad(x), self.num_heads) for x in (query, key))  # [B, H, S, K]
        bias: Tensor | None = None
        if self.position_key is not None:
            bias = shifted(self.position_key.scores(query, distances))
        if self.position_query is not None:  # a key's own rows run from the queries behind it to those before it
            own = shifted(self.position_query.scores(key, distances.flip(0))).transpose(2, 3)
            bias = own if bias is None else bias + own
        assert bias is not None  # noqa: S101 - the configuration names one of them
        return bias * self.scale

    def values(self, hidden: Tensor, first_values: Tensor | None = None) -> Tensor:
        """What attention weighs, [T, D] -> [T, G*V]; `first_values` are the first layer's, for a value residual."""
        value = _norm_and_turn(self.value(hidden), len(self.groups), self.value_norm, NO_TERMS)
        return self.stream.values(value, first_values)

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


def _norm(num_heads: int, d_k: int, eps: float | None, *, is_whole: bool) -> nn.Module | None:
    """A norm of queries or keys: an RMSNorm a head, or a LayerNorm over all together; without an epsilon none."""
    if eps is None:
        return None
    return nn.LayerNorm(num_heads * d_k, eps=eps) if is_whole else nn.RMSNorm(d_k, eps=eps)


def _norm_and_turn(x: Tensor, num_heads: int, norm: nn.Module | None, terms: PositionTerms) -> Tensor:
    """Queries, keys or values [T, heads*K], normed, a head by itself or all together, and then turned by position."""
    if isinstance(norm, nn.LayerNorm):
        x = norm(x)
    elif norm is not None:
        x = norm(x.view(*x.shape[:-1], num_heads, -1)).flatten(-2)
    return x if terms.rotation is None else terms.rotation.turn(x, num_heads)


def no_heads(hidden: Tensor, request: LayerRequest) -> HeadOutputs:
    """The heads' outputs of a layer without heads."""
    return HeadOutputs(hidden.new_zeros(0, 0, 0, 0), None if request.value_norms is None else hidden.new_zeros(0, 0, 0))


class _Heads(Protocol):
    """What `attend` reads of the module whose heads attend; as of `MultiHeadAttention`."""

    num_heads: int
    scale: float
    implementation: Implementation

    @property
    def attended_heads(self) -> int: ...

    @property
    def null_context(self) -> Tensor | None: ...

    def output_factor(self) -> Tensor: ...


def attend(
    heads: _Heads,
    projected: tuple[Tensor, Tensor, Tensor],
    tokens: Packing,
    request: LayerRequest,
    terms: PositionTerms,
) -> tuple[Tensor, HeadOutputs]:
    """Attention within each text of a packed batch, between the projections.

    `projected` are queries [T, H*K], keys [T, G*K] and values [T, G*V] of `attended_heads` G; queries and keys are
    turned already. Gives the context [T, H*V], each head multiplied by its gate, and the heads' own outputs.
    """
    query, key, value = map(tokens.pad, projected)
    context, weights = IMPLEMENTATIONS[heads.implementation](
        AttentionInputs(
            query,
            key,
            value,
            tokens.seen,
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


class AttentionInputs(NamedTuple):
    """What attention is computed from."""

    query: Tensor  # [B, S, H*K]
    key: Tensor  # [B, S, G*K]
    value: Tensor  # [B, S, G*V]
    lengths: Tensor  # [B], tokens a row that are seen; keys at or after it get probability 0
    wanted: Tensor  # bool [1], whether the weights will be read; an implementation may return them regardless
    num_heads: int  # H
    scale: float  # factor on the scores before the softmax
    bias: Tensor | None = None  # [1 or B, H or 1, S, S], added to the scores after scaling
    num_key_value_heads: int | None = None  # G, each read by H/G query heads that stand side by side; None for H
    window: Window | None = None  # all that the bias says, where a graph may compute it in blocks

    def heads(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query and key [B, H, S, K], value [B, H, S, V]: keys and values once for every query head."""
        shared = self.num_key_value_heads or self.num_heads
        key, value = (
            split_heads(x, shared).repeat_interleave(self.num_heads // shared, dim=1) for x in (self.key, self.value)
        )
        return split_heads(self.query, self.num_heads), key, value


# softmax(Q K^T * scale + bias + padding) V for every head (Vaswani et al. 2017, equation 1). Returns the context
# [B, S, H*V], and the weights [B, H, S, S] or None where the implementation has none. Rows of padded queries hold
# anything; a row of length 0 gives weights and context of 0.
AttentionImplementation = Callable[[AttentionInputs], tuple[Tensor, Tensor | None]]


def eager_attention(inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
    """The reference: materialises the weights and always returns them."""
    query, key, value = inputs.heads()
    real = key_mask(inputs.lengths, key.shape[-2])  # [B, 1, 1, S]
    scores = (query @ key.transpose(-2, -1)) * inputs.scale  # [B, H, S, S]
    scores = scores if inputs.bias is None else scores + inputs.bias
    weights = scores.masked_fill(~real, torch.finfo(scores.dtype).min).softmax(dim=-1).masked_fill(~real, 0.0)
    return merge_heads(weights @ value), weights


def sdpa_attention(inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
    """PyTorch's fused kernels, for training and PyTorch inference; has no weights."""
    query, key, value = inputs.heads()
    real, bias = key_mask(inputs.lengths, key.shape[-2]), inputs.bias
    mask = real if bias is None else bias.masked_fill(~real, torch.finfo(bias.dtype).min)
    context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=inputs.scale)
    return merge_heads(context.masked_fill((inputs.lengths == 0)[:, None, None, None], 0.0)), None


def onnx_attention(inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
    """Emits the standard fused op and, beside it, the local function that computes the weights when wanted.

    Only for export: the values computed while tracing are placeholders. The fused op is ONNX `Attention` version 24 on
    3-D inputs, whose input 3, `attn_mask`, is the bias and whose input 6, `nonpad_kv_seqlen`, is the right-padding. The
    weights are a computation of their own, so that asking for them cannot change the context.
    """
    query, key, value, lengths, wanted, num_heads, scale, bias, shared, window = inputs
    shared = shared or num_heads
    batch, sequence, _ = query.shape
    settings: dict[str, Any] = {"num_heads": num_heads, "num_key_value_heads": shared, "scale": scale}
    fused: dict[str, Any] = {"dtype": query.dtype, "shape": (batch, sequence, value.shape[-1] // shared * num_heads)}
    context: Tensor
    if window is None:
        context = torch.onnx.ops.symbolic(
            FUSED_OP,
            [query, key, value, bias, None, None, lengths],
            {"q_num_heads": num_heads, "kv_num_heads": shared, "scale": scale},
            version=FUSED_OP_VERSION,
            **fused,
        )
    else:  # a local function, which cuts long rows into blocks of queries
        blocks = {"half": HALF_BLOCK, "behind": window.behind, "ahead": window.ahead, "longest_dense": LONGEST_DENSE}
        context = torch.onnx.ops.symbolic(
            f"{FUNCTIONS_DOMAIN}::{LOCAL_ATTENTION_OP}",
            [query, key, value, lengths, bias],
            {**settings, **blocks, "lowest": torch.finfo(query.dtype).min},
            version=FUNCTIONS_VERSION,
            **fused,
        )
    weights = torch.onnx.ops.symbolic(
        f"{FUNCTIONS_DOMAIN}::{WEIGHTS_OP if bias is None else BIASED_WEIGHTS_OP}",
        [query, key, lengths, wanted, *([] if bias is None else [bias])],
        settings,
        dtype=query.dtype,
        shape=(batch, num_heads, sequence, sequence),
        version=FUNCTIONS_VERSION,
    )
    return context, weights


IMPLEMENTATIONS: Mapping[Implementation, AttentionImplementation] = {
    "eager": eager_attention,
    "sdpa": sdpa_attention,
    "onnx": onnx_attention,
}


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, S, V] -> [B, S, H*V]."""
    return x.transpose(1, 2).flatten(2)


def key_mask(lengths: Tensor, sequence_length: int) -> Tensor:
    """True where a key is a real token, [B, 1, 1, S]."""
    return real_tokens(lengths, sequence_length)[:, None, None, :]
