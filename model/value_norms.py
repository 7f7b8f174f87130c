"""Norms of what a head moves: ||f(x_j)||, f(x) = (x W_V + b_V) W_O of one head (Kobayashi et al. 2020).

`model.analysis.norms` has the definition and what it is for. It does not depend on the query, so a layer has [B, H, S]
of them. x W_V + b_V stands for what attention weighs, after `model.value_stream` where a network has that; its output
gate, which reads the query, is not part of f. Shape letters as in `model.config`.
"""

import torch
from torch import Tensor

from model.dot_product import split_heads
from model.head_gates import FUNCTIONS_DOMAIN, FUNCTIONS_VERSION, null_context_or_zeros

NORMS_OP = "ValueNorms"


def value_norms(value: Tensor, null_context: Tensor | None, factor: Tensor, wanted: Tensor) -> Tensor:
    """||f(x_j)|| of every token and head.

    Args:
        value: [B, S, G*V], what attention weighs, for G value heads of as many query heads each.
        null_context: [H*V], the value that adds nothing, where a bias or an offset was folded out; None for 0.
        factor: [H, V, R], each head's rows of the output projection, or anything that makes vectors of the same length
            (`reduced_factor`).
        wanted: bool [1].

    Returns:
        [B, H, S], padded tokens anything; [0, H, 0] where not wanted.
    """
    if torch.onnx.is_in_onnx_export():
        return _emit_norms(value, null_context, factor, wanted)
    if not wanted:
        return value.new_zeros(0, len(factor), 0)
    num_heads, d_v, _ = factor.shape
    shared = value.shape[-1] // d_v
    split = split_heads(value, shared).repeat_interleave(num_heads // shared, dim=1)  # [B, H, S, V]
    moved = split if null_context is None else split - null_context.view(num_heads, 1, d_v)
    norms: Tensor = torch.linalg.vector_norm(moved @ factor, dim=-1)  # [B, H, S]
    return norms


def output_rows(weight: Tensor, num_heads: int) -> Tensor:
    """Each head's rows of an output projection whose weight is [D, H*V], as [H, V, D]."""
    return weight.T.reshape(num_heads, -1, weight.shape[0])


def reduced_factor(rows: Tensor) -> Tensor:
    """[H, V, D] as [H, V, min(V, D)] that gives vectors of the same length.

    W^T = Q R with orthonormal Q, so ||v W|| = ||Q R v|| = ||v R^T||: V columns in place of D, and never below 0, as the
    root of v (W W^T) v could be.
    """
    upper: Tensor = torch.linalg.qr(rows.double().transpose(1, 2), mode="r").R
    return upper.transpose(1, 2).to(rows.dtype).contiguous()


def _emit_norms(value: Tensor, null_context: Tensor | None, factor: Tensor, wanted: Tensor) -> Tensor:
    num_heads = len(factor)
    norms: Tensor = torch.onnx.ops.symbolic(
        f"{FUNCTIONS_DOMAIN}::{NORMS_OP}",
        [value, null_context_or_zeros(null_context, factor[..., 0].flatten(), num_heads), factor, wanted],
        {"num_heads": num_heads},
        dtype=torch.float32,
        shape=(value.shape[0], num_heads, value.shape[1]),
        version=FUNCTIONS_VERSION,
    )
    return norms
