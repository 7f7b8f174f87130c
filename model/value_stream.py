"""Optional steps on the values of a layer's attention, all off by default.

    V_l = phi(x W_v + b_v)                       value activation (SiLU in GAU, Hua et al. 2022)
    V_l <- a V_1 + b V_l, l > 1                  value residual (Zhou et al. 2024, "Value Residual Learning")
    context_h <- sigmoid(x w_h + c_h) context_h  output gate, headwise, after attention (Qiu et al. 2025)
    context_h <- context_h H / (heads kept), or 0  head dropout, in training (Zhou et al. 2020, "Scheduled DropHead")

Each is the identity at its neutral setting: no activation; a = 0 and b = 1; a gate of 1 (w = 0 and c large); no
dropout. Attention itself is left alone, so that it stays one fused operator. Shape letters as in `model.config`.
"""

import torch
from torch import Tensor, nn

from model.config import EncoderConfig, ValueActivation
from model.feed_forward import ACTIVATIONS
from model.head_gates import LayerRequest

NEUTRAL_MIX = (0.0, 1.0)


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
        """Builds the steps that are asked for.

        Args:
            hidden_size: D.
            num_heads: H.
            activation: applied to the values.
            mix: a and b of the value residual.
            mix_is_learned: whether they are parameters that begin there.
            output_gate: whether a gate follows attention.
            head_dropout: share of heads left out in training.
        """
        super().__init__()
        self.num_heads = num_heads
        self.activation_name = activation
        self.activation = None if activation == "identity" else ACTIVATIONS[activation]
        self.fixed_mix = mix
        self.mix = nn.Parameter(torch.tensor(mix, dtype=torch.get_default_dtype())) if mix_is_learned else None
        self.gate = nn.Linear(hidden_size, num_heads) if output_gate else None
        self.head_dropout = head_dropout

    def values(self, projected: Tensor, first_values: Tensor | None) -> Tensor:
        """The values that attention weighs.

        Args:
            projected: [T, H*V], what the value projection gives.
            first_values: [T, H*V], the first layer's values; None in the first layer and where no layer has a residual.
        """
        own = projected if self.activation is None else self.activation(projected)
        return self.mix_with(first_values, own)

    def mix_with(self, first_values: Tensor | None, own: Tensor) -> Tensor:
        """`a V_1 + b V_l` of values [..., H*V]; the layer's own where there is nothing to mix."""
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
    return not config.value_residual and config.value_activation == "identity" and not config.output_gate
