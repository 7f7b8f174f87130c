"""Gates that are exactly 0 or 1 most of the time and can still be learned (Louizos et al. 2018, arXiv 1712.01312)."""

import math

import torch
from torch import Tensor, nn

TEMPERATURE = 2 / 3  # beta
LOW, HIGH = -0.1, 1.1  # gamma and zeta: the stretched interval, cut to [0, 1]
SURE = 2.5  # log alpha at first: a gate is open with probability 0.98


class HardConcreteGates(nn.Module):
    """One gate a head, and the multipliers that pull their number to a target (Wang et al. 2020, arXiv 1910.04732).

    Attributes:
        log_alpha: [H], how sure each gate is to be open.
        multipliers: [2], of the distance to the target and of its square; they are to be raised, not lowered.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((heads,), SURE))
        self.multipliers = nn.Parameter(torch.zeros(2))

    def draw(self, rows: int, generator: torch.Generator) -> Tensor:
        """Gates of so many texts, each text's its own, [rows, H] from 0 to 1."""
        uniform = torch.rand(rows, len(self.log_alpha), generator=generator).to(self.log_alpha.device)
        uniform = uniform.clamp(1e-6, 1 - 1e-6)
        noise = uniform.log() - (-uniform).log1p()
        return _stretch(((noise + self.log_alpha) / TEMPERATURE).sigmoid())

    def settled(self) -> Tensor:
        """The gates without chance, [H] from 0 to 1 (equation 13)."""
        return _stretch(self.log_alpha.detach().sigmoid())

    def expected_closed(self) -> Tensor:
        """The share of the gates that is expected to be 0."""
        is_open = (self.log_alpha - TEMPERATURE * math.log(-LOW / HIGH)).sigmoid()  # equation 12
        return 1 - is_open.mean()

    def penalty(self, target: float) -> Tensor:
        """`l1 (s - t) + l2 (s - t)^2` for the expected share s; 0 where it is the target t."""
        distance = self.expected_closed() - target
        return self.multipliers[0] * distance + self.multipliers[1] * distance**2

    def ascend(self) -> None:
        """Turns the multipliers' gradients round: they are raised where the target is missed."""
        if self.multipliers.grad is not None:
            self.multipliers.grad.neg_()

    def least_open(self) -> list[int]:
        """Heads from the one whose gate is most surely closed."""
        order: list[int] = self.log_alpha.detach().argsort(stable=True).tolist()
        return order


def _stretch(x: Tensor) -> Tensor:
    return (x * (HIGH - LOW) + LOW).clamp(0, 1)
