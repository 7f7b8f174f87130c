"""The optimizer of a run: AdamW, or Muon for the matrices of the encoder's layers and AdamW for the rest.

Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") steps along the orthogonal matrix
that is nearest to the momentum. A step is as long as AdamW's (Liu et al. 2025, arXiv 2502.16982, section 2.2), so both
take the same learning rates. `torch.optim.Muon` is the same rule, with five iterations and always in bfloat16, which
takes 40 to 70 times as long on a processor without it (Zen 3).
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from model.encoder import Encoder
from train.settings import RunSettings

BETAS, EPSILON = (0.9, 0.98), 1e-8
MOMENTUM = 0.95
STEP_LENGTH = 0.2  # root mean square of a step over the learning rate; usual for AdamW
ITERATIONS = 4
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315  # take singular values from 0.005 on to between 0.66 and 1.21
MUCH_WIDER = 1.5  # times as wide as high: from there on products of the small square matrix are cheaper


def make_optimizer(
    module: nn.Module, encoder: Encoder, rate_factors: Mapping[str, float], settings: RunSettings
) -> AdamW:
    """The optimizer that the settings name, of everything in `module`, of which the encoder is a part."""
    kind = {"adamw": AdamW, "muon": Muon}[settings.optimizer]
    groups = parameter_groups(module, encoder, rate_factors, settings)
    return kind(groups, lr=settings.learning_rate, betas=BETAS, eps=EPSILON, fused=True)


def parameter_groups(
    module: nn.Module, encoder: Encoder, rate_factors: Mapping[str, float], settings: RunSettings
) -> list[dict[str, Any]]:
    """Groups of parameters: matrices decay, biases and norms do not, embeddings have a rate of their own.

    `rate_factors` are by the first part of a parameter's name. `scale` is the factor on the learning rate; what it is 0
    for is not trained. `is_hidden` marks the matrices of the encoder's layers, which Muon takes.
    """
    tables = [part for part in encoder.embeddings.modules() if isinstance(part, nn.Embedding)]
    embeddings = {id(table.weight) for table in tables}
    hidden = {id(parameter) for parameter in encoder.layers.parameters() if parameter.ndim == 2}
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        is_table = id(parameter) in embeddings
        scale = settings.embedding_rate if is_table else rate_factors.get(name.partition(".")[0], 1.0)
        if not scale:
            parameter.requires_grad_(False)  # else its gradient is computed for nothing
        decay = settings.weight_decay if parameter.ndim > 1 and not is_table else 0.0
        if parameter.requires_grad:
            groups.setdefault((scale, decay, id(parameter) in hidden), []).append(parameter)
    return [
        {"params": own, "weight_decay": decay, "scale": scale, "is_hidden": is_hidden}
        for (scale, decay, is_hidden), own in groups.items()
    ]


class Muon(AdamW):
    """Muon for the groups with `is_hidden`, AdamW for the others."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; the gradients of the hidden matrices are gone afterwards."""
        for group in self.param_groups:
            for matrix in group["params"] if group["is_hidden"] else ():
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state.update(step=torch.tensor(0.0), momentum=torch.zeros_like(matrix))
                state["step"] += 1  # AdamW expects one when a checkpoint is read
                state["momentum"].lerp_(matrix.grad, 1 - MOMENTUM)
                direction = orthogonalise(matrix.grad.lerp(state["momentum"], MOMENTUM))  # Nesterov's
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(direction, alpha=-group["lr"] * STEP_LENGTH * math.sqrt(max(matrix.shape)))
                matrix.grad = None  # AdamW leaves out what has none
        return super().step(closure)


def orthogonalise(matrix: Tensor) -> Tensor:
    """About the orthogonal matrix that is nearest to this one, [M, N]: U V' of its U S V', by Newton and Schulz.

    An iteration takes X to p(X X') X. In a matrix much wider than high p and X X' are small, and all powers of X X'
    commute: their product is formed first, and X is multiplied once. Not under autocast: rounded to bfloat16 they no
    longer commute, and small singular values, of which gradients have many, grow without bound.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalise(matrix.T).T
    found: Tensor = matrix / matrix.norm().clamp(min=1e-7)  # no singular value is above 1
    if matrix.shape[1] < MUCH_WIDER * matrix.shape[0] or torch.is_autocast_enabled(matrix.device.type):
        for _ in range(ITERATIONS):
            found = _polynomial(found @ found.T) @ found
        return found
    square = found @ found.T
    product = last = _polynomial(square)
    for _ in range(ITERATIONS - 1):
        square = last @ square @ last
        last = _polynomial(square)
        product = last @ product
    return torch.mm(product, found)


def _polynomial(square: Tensor) -> Tensor:
    made = torch.addmm(square, square, square, beta=CUBIC, alpha=QUINTIC)
    made.diagonal().add_(LINEAR)
    return made
