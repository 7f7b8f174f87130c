"""Layers that treat every token alike: activations, feed-forward, norms, and dropout in training."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import Activation, EncoderConfig, Norm
from model.config_parts import LayerActivation

ACTIVATIONS: Mapping[LayerActivation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


class FeedForward(nn.Module):
    """`down(activation(up(x)))`, or gated `down(activation(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation,
        gated: bool,
        up_bias: bool,
        down_bias: bool,
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, intermediate_size, bias=up_bias) if gated else None
        self.up = nn.Linear(hidden_size, intermediate_size, bias=up_bias)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=down_bias)
        self.activation_name = activation
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        if self.gate is None:
            inner = self.activation(self.up(hidden))  # [T, intermediate]
        else:
            inner = self.activation(self.gate(hidden)) * self.up(hidden)
        down: Tensor = self.down(inner)
        return down


def make_norm(kind: Norm, size: int, *, eps: float, bias: bool) -> nn.Module:
    """LayerNorm (Ba et al. 2016), with or without its bias, or RMSNorm (Zhang and Sennrich 2019), which has none."""
    return nn.RMSNorm(size, eps=eps) if kind == "rms_norm" else nn.LayerNorm(size, eps=eps, bias=bias)


def norm_of(config: EncoderConfig, size: int | None = None) -> nn.Module:
    """A norm of the kind that a network has, of its width unless said otherwise."""
    return make_norm(config.norm, size or config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)


class LayerSignals(nn.Module):
    """What each token's embedding sends to every layer, `norm(projection(x))` of a layer (EmbeddingGemma 2)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_layers = config.num_layers
        self.projection = nn.Linear(config.hidden_size, config.num_layers * config.layer_signal_size, bias=False)
        self.norm = norm_of(config, config.layer_signal_size)

    def forward(self, embedded: Tensor) -> tuple[Tensor, ...]:
        """[T, D] -> [T, P] a layer."""
        parts: Tensor = self.norm(self.projection(embedded).view(embedded.shape[0], self.num_layers, -1))
        return parts.unbind(dim=1)


class SignalReader(nn.Module):
    """The third part of a layer, `(x + norm(output(activation(gate(x)) * signal))) * layer_scalar`."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.layer_signal_size, bias=False)
        self.output = nn.Linear(config.layer_signal_size, config.hidden_size, bias=False)
        self.norm = norm_of(config)
        self.activation = ACTIVATIONS[config.activation]
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def forward(self, hidden: Tensor, signal: Tensor) -> Tensor:
        """[T, D] and [T, P] -> [T, D]."""
        added = self.norm(self.output(self.activation(self.gate(hidden)) * signal))
        scaled: Tensor = (hidden + added) * self.layer_scalar
        return scaled


class Dropout(nn.Module):
    """Zeroes a share of the values in training and scales the rest (Srivastava et al. 2014); `share` is 0 at first.

    The share belongs to a training run, not to the network: `EncoderConfig` does not know it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.share = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return functional.dropout(x, self.share) if self.training and self.share else x
