"""What a caller asks of one layer's heads besides its output, and gates on what the heads add.

A gate g multiplies a head's context before the output projection (Michel et al. 2019, "Are Sixteen Heads Really Better
than One?", equation 3): 1 leaves the head as it is, 0 removes it. Shape letters as in `model.config`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from model.packing import Packing


class LayerRequest(NamedTuple):
    """What is asked of one layer.

    Attributes:
        weights: bool scalar, whether the attention weights will be read.
        head_gates: [B, sum of all layers' heads], first layer first, or None for heads as they are. The layer reads its
            own columns; they are not cut out here, since a graph would pay for that in every run.
        first_head: where this layer's columns begin.
        first_values: [T, H*V], the first layer's values where the network has a value residual, else None.
    """

    weights: Tensor
    head_gates: Tensor | None = None
    first_head: int = 0
    first_values: Tensor | None = None

    def gates(self, num_heads: int) -> Tensor | None:
        """This layer's gates [B, H], or None."""
        if self.head_gates is None:
            return None
        return self.head_gates[:, self.first_head : self.first_head + num_heads]


def pack_gated(
    context: Tensor, tokens: Packing, request: LayerRequest, closed: Tensor | None, *, num_heads: int
) -> Tensor:
    """The context of a batch's real tokens, each head multiplied by its gate.

    Args:
        context: [B, S, H*V].
        tokens: where the real tokens stand.
        request: holds the gates.
        closed: [H*V], the context of a head that adds nothing, where a bias or an offset was folded out of it; None
            for 0. A gate moves the context on the line from there to what it is: `g c + (1 - g) closed`.
        num_heads: H.

    Returns:
        [T, H*V]; gates that are all 1 change no bit where `closed` is None.
    """
    gates = request.gates(num_heads)
    if gates is None:
        return tokens.pack(context)
    gates = gates.to(context.dtype)[:, None, :, None]  # [B, 1, H, 1]
    gated = context.view(*context.shape[:2], num_heads, -1) * gates  # [B, S, H, V]
    if closed is not None:
        gated = gated + (1 - gates) * closed.view(num_heads, -1)
    return tokens.pack(gated.flatten(2))


def check_gates(head_gates: Tensor, batch_size: int, num_heads: tuple[int, ...]) -> None:
    """Refuses gates that do not fit.

    Raises:
        ValueError: another shape than [B, sum of all layers' heads].
    """
    expected = (batch_size, sum(num_heads))
    if not torch.onnx.is_in_onnx_export() and head_gates.shape != expected:
        raise ValueError(f"head_gates have shape {tuple(head_gates.shape)}: expected [B, sum of heads] = {expected}")
