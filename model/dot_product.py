"""Scaled dot-product attention over heads, in three interchangeable implementations.

The reference, PyTorch's fused kernels, and the fused operator of a graph. Shape letters as in `model.config`: B batch,
S sequence, H heads, G key and value heads, K = d_k, V = d_v.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from model.head_gates import FUNCTIONS_DOMAIN, FUNCTIONS_VERSION
from model.packing import real_tokens
from model.positions import HALF_BLOCK, LONGEST_DENSE, Window

Implementation = Literal["eager", "sdpa", "onnx"]

FUSED_DOMAIN = ""
FUSED_OP = "Attention"
FUSED_OP_VERSION = 24
WEIGHTS_OP = "AttentionWeights"
BIASED_WEIGHTS_OP = "BiasedAttentionWeights"
LOCAL_ATTENTION_OP = "LocalAttention"


class AttentionInputs(NamedTuple):
    """What attention is computed from.

    Attributes:
        query: [B, S, H*K].
        key: [B, S, G*K].
        value: [B, S, G*V].
        lengths: [B], real tokens a row; keys at or after it get probability 0.
        wanted: bool [1], whether the weights will be read; an implementation may return them regardless.
        num_heads: H.
        scale: factor on the scores before the softmax.
        bias: [1, H or 1, S, S], added to the scores after scaling; None for none.
        num_key_value_heads: G, each read by H/G query heads that stand side by side; None for H.
        window: all that the bias says, where a graph may compute it in blocks; None for no such blocks.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    lengths: Tensor
    wanted: Tensor
    num_heads: int
    scale: float
    bias: Tensor | None = None
    num_key_value_heads: int | None = None
    window: Window | None = None

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
    query, key, _, lengths, wanted, num_heads, scale, bias, shared, window = inputs
    shared = shared or num_heads
    batch, sequence, _ = query.shape
    context = _fused(inputs) if window is None else _fused_in_blocks(inputs, window)
    weights = torch.onnx.ops.symbolic(
        f"{FUNCTIONS_DOMAIN}::{WEIGHTS_OP if bias is None else BIASED_WEIGHTS_OP}",
        [query, key, lengths, wanted, *([] if bias is None else [bias])],
        {"num_heads": num_heads, "num_key_value_heads": shared, "scale": scale},
        dtype=query.dtype,
        shape=(batch, num_heads, sequence, sequence),
        version=FUNCTIONS_VERSION,
    )
    return context, weights


def _fused(inputs: AttentionInputs) -> Tensor:
    """The operator, with all keys at once."""
    query, _, value, lengths, _, num_heads, scale, bias, *_ = inputs
    shared = inputs.num_key_value_heads or num_heads
    context: Tensor = torch.onnx.ops.symbolic(
        f"{FUSED_DOMAIN}::{FUSED_OP}" if FUSED_DOMAIN else FUSED_OP,
        [query, inputs.key, value, bias, None, None, lengths],
        {"q_num_heads": num_heads, "kv_num_heads": shared, "scale": scale},
        dtype=query.dtype,
        shape=(*query.shape[:2], value.shape[-1] // shared * num_heads),
        version=FUSED_OP_VERSION,
    )
    return context


def _fused_in_blocks(inputs: AttentionInputs, window: Window) -> Tensor:
    """The operator in a local function, which cuts long rows into blocks of queries."""
    query, _, value, lengths, _, num_heads, scale, bias, *_ = inputs
    shared = inputs.num_key_value_heads or num_heads
    settings: dict[str, int | float] = {
        "half": HALF_BLOCK,
        "behind": window.behind,
        "ahead": window.ahead,
        "lowest": torch.finfo(query.dtype).min,
        "longest_dense": LONGEST_DENSE,
    }
    context: Tensor = torch.onnx.ops.symbolic(
        f"{FUNCTIONS_DOMAIN}::{LOCAL_ATTENTION_OP}",
        [query, inputs.key, value, lengths, bias],
        {"num_heads": num_heads, "num_key_value_heads": shared, "scale": scale, **settings},
        dtype=query.dtype,
        shape=(*query.shape[:2], value.shape[-1] // shared * num_heads),
        version=FUNCTIONS_VERSION,
    )
    return context


IMPLEMENTATIONS: Mapping[Implementation, AttentionImplementation] = MappingProxyType(
    {"eager": eager_attention, "sdpa": sdpa_attention, "onnx": onnx_attention}
)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """[B, S, H*K] -> [B, H, S, K]."""
    return x.view(*x.shape[:2], num_heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, S, V] -> [B, S, H*V]."""
    return x.transpose(1, 2).flatten(2)


def key_mask(lengths: Tensor, sequence_length: int) -> Tensor:
    """True where a key is a real token, [B, 1, 1, S]."""
    return real_tokens(lengths, sequence_length)[:, None, None, :]
