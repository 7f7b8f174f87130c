"""Folds away what attention cancels, exactly in real arithmetic, before a graph is made.

The fused operator takes no bias, so each of the three would cost a pass over [B, S, H*K].
"""

import copy

import torch
from torch import nn

from model.attention import MultiHeadAttention
from model.encoder import Encoder


def fold_biases(encoder: Encoder) -> tuple[Encoder, int]:
    """A copy without key and value biases that computes the same, and how many were removed.

    q (k + b_k) = q k + q b_k: the same for every key of a query, so the softmax cancels b_k; not so where rotary
    positions turn b_k by another angle at every key, and it stays there. And since the weights of
    a query sum to 1, sum_j a_j (v_j + b_v) = sum_j a_j v_j + b_v: b_v moves behind the output projection as W_o b_v.
    What stays behind is where a head's context is 0: at -b_v now, for whoever closes a head (`closed`).
    """
    folded = copy.deepcopy(encoder)
    removed = 0
    for module in folded.modules():
        if isinstance(module, MultiHeadAttention) and module.num_heads and module.value.bias is not None:
            module.output.bias = nn.Parameter(_moved_bias(module), requires_grad=False)
            module.closed = -module.value.bias.detach()  # without its bias a value of 0 is this
            module.value.bias = None  # type: ignore[assignment]  # nn.Linear takes None for no bias
            removed += 1
            if encoder.config.attention_positions != "rotary":
                module.key.bias = None  # type: ignore[assignment]  # as above
                removed += 1
    return folded, removed


def _moved_bias(attention: MultiHeadAttention) -> torch.Tensor:
    """b_o + W_o b_v in float64, so that folding adds no rounding of its own."""
    moved = attention.output.weight.double() @ attention.value.bias.double()
    own = attention.output.bias
    return (moved if own is None else own.double() + moved).to(attention.output.weight.dtype)
