"""The part of a layer that treats every token alike: linear maps with a non-linearity between them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor, nn
from torch.nn import functional

from model.config import Activation

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "relu": functional.relu,
        "silu": functional.silu,
    }
)


class FeedForward(nn.Module):
    """`down(activation(up(x)))`, or gated `down(activation(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation,
        gated: bool = False,
        up_bias: bool = True,
        down_bias: bool = True,
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
