"""Folds away what attention cancels and shortens what norms need, exactly in real arithmetic, before a graph is made.

The fused operator takes no bias, so each of the three would cost a pass over [B, S, H*K].
"""

import copy

import torch
from torch import nn

from export.int8.layers import QuantizedAttention
from model.attention import MultiHeadAttention
from model.encoder import Encoder
from model.value_norms import reduced_factor
from model.value_stream import is_linear


def fold_biases(encoder: Encoder) -> tuple[Encoder, int]:
    """A copy without key and value biases that computes the same, and how many were removed.

    q (k + b_k) = q k + q b_k: the same for every key of a query, so the softmax cancels b_k; not so where rotary
    positions turn b_k by another angle at every key, or where keys are normed, and it stays there. And since the
    weights of a query sum to 1, sum_j a_j (v_j + b_v) = sum_j a_j v_j + b_v: b_v moves behind the output projection
    as W_o b_v; not so where values are more than weighed (`model.value_stream`), and it stays there. What stays
    behind is where a head's context is 0: at -b_v now, which is then its `null_context`.
    """
    folded = copy.deepcopy(encoder)
    attentions = [module for module in folded.modules() if isinstance(module, MultiHeadAttention) and module.num_heads]
    config = encoder.config
    keys = attentions if config.attention_positions != "rotary" and not config.query_key_norm else []
    values = attentions if is_linear(config) else []
    return folded, sum(map(_drop_key_bias, keys)) + sum(map(_move_value_bias, values))


def _drop_key_bias(attention: MultiHeadAttention) -> bool:
    """Whether there was one."""
    if attention.key.bias is None:
        return False
    attention.key.bias = None  # type: ignore[assignment]  # nn.Linear takes None for no bias
    return True


def _move_value_bias(attention: MultiHeadAttention) -> bool:
    """Whether there was one."""
    if attention.value.bias is None:
        return False
    attention.output.bias = nn.Parameter(_moved_bias(attention), requires_grad=False)
    bias = attention.value.bias.detach()
    attention.null_context = -attention.per_query_head(bias)  # without its bias a value of 0 is this
    attention.value.bias = None  # type: ignore[assignment]  # nn.Linear takes None for no bias
    return True


def reduce_factors(encoder: Encoder) -> int:
    """Gives every layer, in place, a short factor for the norms of its values; returns how many there are."""
    attentions = [m for m in encoder.modules() if isinstance(m, MultiHeadAttention | QuantizedAttention)]
    with_heads = [attention for attention in attentions if attention.num_heads]
    for attention in with_heads:
        attention.value_factor = reduced_factor(attention.output_factor())
    return len(with_heads)


def _moved_bias(attention: MultiHeadAttention) -> torch.Tensor:
    """b_o + W_o b_v in float64, so that folding adds no rounding of its own."""
    moved = attention.output.weight.double() @ attention.per_query_head(attention.value.bias).double()
    own = attention.output.bias
    return (moved if own is None else own.double() + moved).to(attention.output.weight.dtype)
