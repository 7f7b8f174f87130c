"""An activation at a known input as a factor: f(z) = (f(z) / z) z (DecompX, Modarressi et al. 2023, section 3.2).

Written in closed form, so that no z is too small to divide by. At z = 0 each has the limit from above.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from model.tasks.settings import LayerActivation

_TANH_CUBE = 0.044715  # of the approximation of GELU (Hendrycks and Gimpel 2016)


def _gelu(z: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(z / math.sqrt(2)))


def _gelu_tanh(z: Tensor) -> Tensor:
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + _TANH_CUBE * z * z * z)))


def _relu(z: Tensor) -> Tensor:
    return (z >= 0).to(z.dtype)


def _tanh(z: Tensor) -> Tensor:
    is_zero = z == 0
    return torch.where(is_zero, torch.ones_like(z), torch.tanh(z) / torch.where(is_zero, torch.ones_like(z), z))


FACTORS: Mapping[LayerActivation, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "identity": torch.ones_like,
        "gelu": _gelu,
        "gelu_tanh": _gelu_tanh,
        "relu": _relu,
        "silu": torch.sigmoid,
        "tanh": _tanh,
    }
)
