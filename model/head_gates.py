"""Gates on what heads add, and what a caller asks of one layer's heads besides its output.

A gate g multiplies a head's context before the output projection (Michel et al. 2019, "Are Sixteen Heads Really Better
than One?", equation 3): 1 leaves the head as it is, 0 removes it. Shape letters as in `model.config`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from model.packing import Packing

FUNCTIONS_DOMAIN = "polyhead"
FUNCTIONS_VERSION = 1
GATED_OP = "GatedContext"


class LayerRequest(NamedTuple):
    """What is asked of one layer.

    Attributes:
        weights: bool [1], whether the attention weights will be read.
        value_norms: bool [1], whether the norms of the values will be read, or None for no.
        head_gates: [B, sum of all layers' heads], first layer first, or None for heads as they are. The layer reads its
            own columns; they are not cut out here, since a graph would pay for that in every run.
        first_head: where this layer's columns begin.
        first_values: [T, H*V], for a value residual: the first layer's values in every other layer, else None.
        values: [T, H*V], this layer's values where they are known already, else None.
    """

    weights: Tensor
    value_norms: Tensor | None = None
    head_gates: Tensor | None = None
    first_head: int = 0
    first_values: Tensor | None = None
    values: Tensor | None = None

    def gates(self, num_heads: int) -> Tensor | None:
        """This layer's gates [B, H], or None."""
        if self.head_gates is None:
            return None
        return self.head_gates[:, self.first_head : self.first_head + num_heads]


class HeadOutputs(NamedTuple):
    """What a layer's heads give beside the context.

    Attributes:
        weights: [B, H, S, S], or None where the implementation has none.
        value_norms: [B, H, S], ||f(x_j)|| of `model.analysis.norms`; [0, H, 0] or None where not asked for.
    """

    weights: Tensor | None
    value_norms: Tensor | None


def pack_gated(
    context: Tensor, tokens: Packing, request: LayerRequest, null_context: Tensor | None, *, num_heads: int
) -> Tensor:
    """The context of a batch's real tokens, each head multiplied by its gate.

    Args:
        context: [B, S, H*V].
        tokens: where the real tokens stand.
        request: holds the gates.
        null_context: [H*V], the context of a head that adds nothing, where a bias or an offset was folded out of it;
            None for 0. A gate g makes a context c into `g c + (1 - g) null_context`.
        num_heads: H.

    Returns:
        [T, H*V]; gates that are all 1 change no bit where `null_context` is None.
    """
    if request.head_gates is not None and torch.onnx.is_in_onnx_export():
        return _emit_gated(context, tokens, request, null_context, num_heads)
    gates = request.gates(num_heads)
    if gates is None:
        return tokens.pack(context)
    gates = gates.to(context.dtype)[:, None, :, None]  # [B, 1, H, 1]
    gated = context.view(*context.shape[:2], num_heads, -1) * gates  # [B, S, H, V]
    if null_context is not None:
        gated = gated + (1 - gates) * null_context.view(num_heads, -1)
    return tokens.pack(gated.flatten(2))


def null_context_or_zeros(null_context: Tensor | None, like: Tensor, num_heads: int) -> Tensor:
    """`null_context` as [H, V], zeros for None: a graph's function takes no missing tensor. `like` is [..., H*V]."""
    null_context = like.new_zeros(like.shape[-1]) if null_context is None else null_context
    return null_context.view(num_heads, -1)


def _emit_gated(
    context: Tensor, tokens: Packing, request: LayerRequest, null_context: Tensor | None, num_heads: int
) -> Tensor:
    """Emits the local function that packs, and multiplies by gates only where they are given."""
    inputs = [
        context.flatten(0, 1),
        tokens.packed,
        request.head_gates,
        null_context_or_zeros(null_context, context, num_heads),
    ]
    packed: Tensor = torch.onnx.ops.symbolic(
        f"{FUNCTIONS_DOMAIN}::{GATED_OP}",
        inputs,
        {"num_heads": num_heads, "first_head": request.first_head},
        dtype=context.dtype,
        shape=(tokens.packed.shape[0], context.shape[-1]),
        version=FUNCTIONS_VERSION,
    )
    return packed


def check_gates(head_gates: Tensor, lengths: Tensor, num_heads: tuple[int, ...]) -> None:
    """Refuses gates that do not fit a batch of `lengths [B]`.

    Raises:
        ValueError: another shape than [B, sum of all layers' heads].
    """
    if torch.onnx.is_in_onnx_export():  # a graph takes no rows of gates where none are given
        return
    expected = (len(lengths), sum(num_heads))
    if head_gates.shape != expected:
        raise ValueError(f"head_gates have shape {tuple(head_gates.shape)}: expected [B, sum of heads] = {expected}")
