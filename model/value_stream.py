"""What happens to a layer's values, to what each head makes of them, and what a caller asks of the heads besides.

Optional steps, all off by default:

    V_l = phi(x W_v + b_v)                         value activation (SiLU in GAU, Hua et al. 2022)
    V_l <- a V_1 + b V_l, l > 1                    value residual (Zhou et al. 2024, "Value Residual Learning")
    context_h <- sigmoid(x w_h + c_h) context_h    output gate, headwise, after attention (Qiu et al. 2025)
    context_h <- context_h H / (heads kept), or 0  head dropout, in training (Zhou et al. 2020, "Scheduled DropHead")

Each is the identity at its neutral setting: no activation; a = 0 and b = 1; a gate of 1 (w = 0 and c large); no
dropout. Attention itself is left alone, so that it stays one fused operator.

A caller's gate g multiplies a head's context before the output projection (Michel et al. 2019, "Are Sixteen Heads
Really Better than One?", equation 3): 1 leaves the head as it is, 0 removes it. Value norms are ||f(x_j)||, f(x) =
(x W_V + b_V) W_O of one head (Kobayashi et al. 2020; `model.analysis.contributions` says what they are for). They do
not depend on the query, so a layer has [B, H, S] of them; the output gate, which reads the query, is not part of f.
Shape letters as in `model.config`.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.config import EncoderConfig, ValueActivation
from model.layers import ACTIVATIONS
from model.packing import Packing

NEUTRAL_MIX = (0.0, 1.0)
FUNCTIONS_DOMAIN = "polyhead"
FUNCTIONS_VERSION = 1
GATED_OP = "GatedContext"
NORMS_OP = "ValueNorms"


class LayerRequest(NamedTuple):
    """What is asked of one layer.

    Attributes:
        weights: bool [1], whether the attention weights will be read.
        value_norms: bool [1], whether the norms of the values will be read, or None for no.
        head_gates: [B, sum of all layers' heads], first layer first, or None for heads as they are. The layer reads its
            own columns; they are not cut out here, since a graph would pay for that in every run.
        first_head: where this layer's columns begin.
        first_values: [T, H*V], for a value residual: the first layer's values in every other layer, else None.
        values: [T, H*V], this layer's values if they are known already, else None.
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
    """What a layer's heads give besides the context."""

    weights: Tensor | None  # [B, H, S, S], or None where the implementation has none
    value_norms: Tensor | None  # [B, H, S], ||f(x_j)|| as above; [0, H, 0] or None where not asked for


class ValueStream(nn.Module):
    """The steps of one layer, between the value projection and the output projection."""

    def __init__(
        self,
        *,
        hidden_size: int,
        num_heads: int,
        activation: ValueActivation = "identity",
        mix: tuple[float, float] = NEUTRAL_MIX,
        mix_is_learned: bool = False,
        output_gate: bool = False,
        head_dropout: float = 0.0,
    ) -> None:
        """Builds the steps that are asked for; `mix` are a and b of the value residual, or where they begin."""
        super().__init__()
        self.num_heads = num_heads
        self.activation_name = activation
        self.activation = None if activation == "identity" else ACTIVATIONS[activation]
        self.fixed_mix = mix
        self.mix = nn.Parameter(torch.tensor(mix, dtype=torch.get_default_dtype())) if mix_is_learned else None
        self.gate = nn.Linear(hidden_size, num_heads) if output_gate else None
        self.head_dropout = head_dropout

    def values(self, projected: Tensor, first_values: Tensor | None) -> Tensor:
        """The values that attention weighs, from what the value projection gives, [T, H*V] each.

        `first_values` are the first layer's; None in the first layer and where no layer has a residual.
        """
        own = projected if self.activation is None else self.activation(projected)
        return self.mix_with(first_values, own)

    def mix_with(self, first_values: Tensor | None, own: Tensor) -> Tensor:
        """`a V_1 + b V_l` of values [..., H*V]; the layer's own if there is nothing to mix."""
        if first_values is None or (self.mix is None and tuple(self.fixed_mix) == NEUTRAL_MIX):
            return own
        first, second = self.fixed_mix if self.mix is None else self.mix.unbind()
        return first * first_values + second * own

    def output_gates(self, hidden: Tensor) -> Tensor | None:
        """The gate of every head, [T, D] -> [T, H]; None for no gates."""
        return None if self.gate is None else self.gate(hidden).sigmoid()

    def apply_output_gate(self, context: Tensor, hidden: Tensor) -> Tensor:
        """The context [T, H*V], each head times its gate, which reads the layer's input `hidden` [T, D]."""
        gates = self.output_gates(hidden)
        if gates is None:
            return context
        per_head = context.view(context.shape[0], self.num_heads, -1)  # [T, H, V]
        return (per_head * gates[:, :, None]).flatten(1)

    def drop_heads(self, request: LayerRequest, lengths: Tensor) -> LayerRequest:
        """The request [B rows], in training with head dropout's gates times the caller's.

        Each text draws its own heads. What is left is scaled by H / (heads kept), so that every head counts once on
        average; a text that would lose all keeps all.
        """
        if not self.training or not self.head_dropout:
            return request
        kept = torch.rand(len(lengths), self.num_heads, device=lengths.device) >= self.head_dropout  # [B, H]
        kept = kept | ~kept.any(dim=1, keepdim=True)
        drawn = kept * (self.num_heads / kept.sum(dim=1, keepdim=True))
        asked = request.gates(self.num_heads)
        return request._replace(head_gates=drawn if asked is None else drawn * asked, first_head=0)


def make_value_stream(config: EncoderConfig, layer: int) -> ValueStream:
    """The steps of one layer of a network."""
    mixes = bool(config.value_residual) and layer > 0 and config.num_heads[layer] > 0
    return ValueStream(
        hidden_size=config.hidden_size,
        num_heads=config.num_heads[layer],
        activation=config.value_activation,
        mix=config.value_residual[layer] if mixes else NEUTRAL_MIX,
        mix_is_learned=mixes and config.learned_value_residual,
        output_gate=config.output_gate and config.num_heads[layer] > 0,
        head_dropout=config.head_dropout,
    )


def is_linear(config: EncoderConfig) -> bool:
    """Whether every layer's context is a weighted mean of projected values and nothing else.

    Only then may a value bias be moved behind attention. With a value residual the first layer's bias is also part of
    other layers' values.
    """
    changed = config.value_residual or config.value_activation != "identity" or config.value_norm
    return not changed and not config.output_gate


def pack_gated(
    context: Tensor, tokens: Packing, request: LayerRequest, null_context: Tensor | None, *, num_heads: int
) -> Tensor:
    """The context of a batch's real tokens, each head multiplied by its gate: [B, S, H*V] -> [T, H*V].

    `null_context` [H*V] is the context of a head that adds nothing, where a bias or an offset was folded out of it;
    None for 0. A gate g makes a context c into `g c + (1 - g) null_context`. Gates of 1 change no bit where it is None.
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


def _emit_gated(
    context: Tensor, tokens: Packing, request: LayerRequest, null_context: Tensor | None, num_heads: int
) -> Tensor:
    """Emits the local function that packs, and multiplies by gates only if they are given."""
    null_context = null_context_or_zeros(null_context, context, num_heads)
    inputs = [context.flatten(0, 1), tokens.packed, request.head_gates, null_context]
    packed: Tensor = torch.onnx.ops.symbolic(
        f"{FUNCTIONS_DOMAIN}::{GATED_OP}",
        inputs,
        {"num_heads": num_heads, "first_head": request.first_head},
        dtype=context.dtype,
        shape=(tokens.packed.shape[0], context.shape[-1]),
        version=FUNCTIONS_VERSION,
    )
    return packed


def null_context_or_zeros(null_context: Tensor | None, like: Tensor, num_heads: int) -> Tensor:
    """`null_context` as [H, V], zeros for None: a graph's function accepts no missing tensor. `like` is [..., H*V]."""
    null_context = like.new_zeros(like.shape[-1]) if null_context is None else null_context
    return null_context.view(num_heads, -1)


def value_norms(value: Tensor, null_context: Tensor | None, factor: Tensor, wanted: Tensor) -> Tensor:
    """||f(x_j)|| of every token and head, [B, H, S], padded tokens anything; [0, H, 0] where not `wanted`, bool [1].

    Args:
        value: [B, S, G*V], what attention weighs, for G value heads of as many query heads each.
        null_context: as of `pack_gated`.
        factor: [H, V, R], each head's rows of the output projection, or anything that makes vectors of the same length
            (`reduced_factor`).
        wanted: whether to compute them.
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


def output_rows(weight: Tensor, num_heads: int) -> Tensor:
    """Each head's rows of an output projection whose weight is [D, H*V], as [H, V, D]."""
    return weight.T.reshape(num_heads, -1, weight.shape[0])


def reduced_factor(rows: Tensor) -> Tensor:
    """[H, V, D] as [H, V, min(V, D)] that gives vectors of the same length.

    W^T = Q R with orthonormal Q, so ||v W|| = ||Q R v|| = ||v R^T||: V columns instead of D, and never below 0, as the
    root of v (W W^T) v could be.
    """
    upper: Tensor = torch.linalg.qr(rows.double().transpose(1, 2), mode="r").R
    return upper.transpose(1, 2).to(rows.dtype).contiguous()


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """[B, S, H*K] -> [B, H, S, K]."""
    return x.view(*x.shape[:2], num_heads, -1).transpose(1, 2)
