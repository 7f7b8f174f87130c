"""A network made linear by detaching fixed parts from autograd; its directional derivatives are the parts.

It shares the encoder's forward pass, and no line of `model.decomposition`.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from model.encoder import Encoder


class Fixed(nn.Module):
    """A module whose output does not depend on anything."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.module(x).detach()
        return found


class FixedNorm(nn.Module):
    """A norm with its deviation detached, written out."""

    def __init__(self, norm: nn.LayerNorm | nn.RMSNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        assert self.norm.eps is not None
        if isinstance(self.norm, nn.LayerNorm):
            x = x - x.sum(dim=-1, keepdim=True) / x.shape[-1]
        deviation = ((x * x).sum(dim=-1, keepdim=True) / x.shape[-1] + self.norm.eps).sqrt().detach()
        bias = getattr(self.norm, "bias", None)
        return x / deviation * self.norm.weight + (0.0 if bias is None else bias)


class Given(nn.Module):
    """Instead of the embedding layer: a tensor that is set."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.token = nn.Embedding(weight.shape[0], weight.shape[1], _weight=weight)
        self.embedded = torch.empty(0)

    def forward(self, *_: object) -> Tensor:
        return self.embedded


class FixedActivation(nn.Module):
    """An activation with its factor detached."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.original = activation

    def forward(self, z: Tensor) -> Tensor:
        found: Tensor = z * (self.original(z) / z).detach()
        return found


def fixed(encoder: Encoder) -> Encoder:
    """A copy, linear but for the embedding layer."""
    made = copy.deepcopy(encoder)
    for name, module in list(made.named_modules()):
        parent, _, attribute = name.rpartition(".")
        if name.startswith("embeddings"):
            continue
        if attribute in {"query_norm", "key_norm"}:
            continue  # behind a fixed part already
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            setattr(made.get_submodule(parent), attribute, FixedNorm(module))
        elif attribute in {"query", "key", "gate"}:
            setattr(made.get_submodule(parent), attribute, Fixed(module))
        elif (activations := getattr(module, "activations", None)) is not None:
            module.activations = [FixedActivation(activation) for activation in activations]
        elif (activation := getattr(module, "activation", None)) is not None and getattr(module, "gate", None) is None:
            module.activation = FixedActivation(activation)
        elif attribute == "stream" and module.activation is not None:
            module.activation = FixedActivation(module.activation)
    return made


def reference_parts(encoder: Encoder, ids: Tensor, types: Tensor | None) -> tuple[Tensor, Tensor]:
    """Parts of the hidden states [S, S, D] and of the output [S, D'], a source a token."""
    made, lengths = fixed(encoder), torch.tensor([ids.shape[1]])
    places = torch.arange(ids.shape[1])
    embedded = encoder.embeddings(ids[0], places, None if types is None else types[0])
    start = Given(encoder.embeddings.token.weight)
    made.set_submodule("embeddings", start)

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        start.embedded = x
        output = made(ids, lengths, token_type_ids=types)
        return output.last_hidden_state[0], output.task_output[0]

    hidden, outputs = [], []
    for place in places:
        only = torch.where((places == place)[:, None], embedded, 0.0)
        _, (part, output_part) = torch.autograd.functional.jvp(run, (embedded,), (only,))  # type: ignore[no-untyped-call]
        hidden.append(part)
        outputs.append(output_part)
    return torch.stack(hidden, dim=1), torch.stack(outputs)
