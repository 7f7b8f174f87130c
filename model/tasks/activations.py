"""The activations after a task's dense layer."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from model.feed_forward import ACTIVATIONS
from model.tasks.settings import LayerActivation


def _identity(x: Tensor) -> Tensor:
    return x


LAYER_ACTIVATIONS: Mapping[LayerActivation, Callable[[Tensor], Tensor]] = MappingProxyType(
    {**{name: ACTIVATIONS[name] for name in ACTIVATIONS}, "tanh": torch.tanh, "identity": _identity}
)
