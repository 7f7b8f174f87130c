"""Learns which heads to keep while the network learns to do without the others, and then removes them.

A gate is exactly 0 or 1 most of the time and can still be learned (hard concrete, Louizos et al. 2018, arXiv
1712.01312). Voita et al. 2019 (arXiv 1905.09418) learned such gates for translation, with a penalty on their number.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from export.checkpoint import require_embedding
from export.heads.subject import find_subject
from export.pruning.removal import remove_heads
from model.encoder import Encoder
from train.commands import GateSettings
from train.data import Texts, read_material
from train.distillation import Distillation
from train.embedding import encoder_layers
from train.heal import count_to_remove, with_removed
from train.parallel import generator_of
from train.reconstruct import require_fittable
from train.settings import RunSettings

TARGET_SHARE = 0.4  # of the run, in which the target rises from 0
DRAWN = 1  # apart from the numbers of a step that replace tokens
TEMPERATURE = 2 / 3  # beta
LOW, HIGH = -0.1, 1.1  # gamma and zeta: the stretched interval, cut to [0, 1]
SURE = 2.5  # log alpha at first: a gate is open with probability 0.98


class HardConcreteGates(nn.Module):
    """One gate a head, and the multipliers that pull their number to a target (Wang et al. 2020, arXiv 1910.04732).

    Attributes:
        log_alpha: [H], how surely each gate is open.
        multipliers: [2], of the distance to the target and of its square; trained by ascent.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((heads,), SURE))
        self.multipliers = nn.Parameter(torch.zeros(2))
        self.multipliers.register_hook(torch.neg)  # type: ignore[no-untyped-call]  # raised where the target is missed

    def draw(self, rows: int, generator: torch.Generator) -> Tensor:
        """Random gates for each text of a batch, [rows, H] from 0 to 1."""
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
        """`l1 (s - t) + l2 (s - t)^2` for the expected share s; 0 at the target t."""
        distance = self.expected_closed() - target
        return self.multipliers[0] * distance + self.multipliers[1] * distance**2


def _stretch(x: Tensor) -> Tensor:
    return (x * (HIGH - LOW) + LOW).clamp(0, 1)


class Gates(Distillation):
    """The recipe of `polyhead train gates`."""

    command = "gates"

    def __init__(self, settings: GateSettings, run: RunSettings, material: Texts | None = None) -> None:
        """Reads the texts too if `material` is None."""
        whole = find_subject(settings.model).checkpoint
        require_embedding(whole, "gates are judged")
        require_fittable(whole.encoder.config)
        self.count = count_to_remove(settings.remove, whole.encoder.config)
        super().__init__(
            remove_heads(whole.encoder, ()),  # a copy
            whole,
            material or read_material(settings.texts, settings.held_out),
            settings.weights,
            run,
            described={"remove": settings.remove, "gate_rate": settings.gate_rate},
            layers=range(whole.encoder.config.num_layers),
        )
        self.whole = whole
        self.gates = HardConcreteGates(sum(whole.encoder.config.num_heads)).to(self.device)
        self.module = nn.ModuleDict({"encoder": self.encoder, "gates": self.gates})
        self.rate_factors = {"gates": settings.gate_rate}

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """The gradient of the distillation loss under drawn gates, and of the penalty on their number."""
        batch = self.batch(places, step)
        gates = self.gates.draw(len(batch.lengths), generator_of(self.seed, step, DRAWN))
        target = self.count / len(self.gates.log_alpha) * min(1.0, share / TARGET_SHARE)
        loss = self.loss(batch, share, gates)
        # Gradients of all processes are added, and each has the whole penalty.
        (loss + self.gates.penalty(target) / self.processes.count).backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def network(self) -> Encoder:
        """The network without the heads whose gates are least open; what is left of the others' gates is folded in.

        What surrounds it then names these heads.
        """
        self.like = with_removed(self.whole, {"heads": self.findings()["removed"]})
        kept = fold_gates(self.encoder, self.gates.settled())
        return remove_heads(kept, self._closed())

    def findings(self) -> dict[str, Any]:
        """The heads that go, as `heal --heads` reads them."""
        return {"removed": [list(self.encoder.config.head_place(head)) for head in self._closed()]}

    def may_be_kept(self, share: float) -> bool:
        """Not before the target is reached: an early network never had to do without its heads."""
        return share >= TARGET_SHARE

    def evaluate(self) -> dict[str, float]:
        """Cosines to the whole network's vectors, and the share of the gates that is expected to be closed."""
        return {**super().evaluate(), "closed": float(self.gates.expected_closed().detach())}

    def _closed(self) -> list[int]:
        """As many heads as have to go, those first whose gates are most surely closed."""
        order: list[int] = self.gates.log_alpha.detach().argsort(stable=True).tolist()
        return order[: self.count]


def fold_gates(encoder: Encoder, gates: Tensor) -> Encoder:
    """A copy whose output projections hold the gates [H] of their heads; gates of 0 are left as 1."""
    folded = remove_heads(encoder, ())
    for layer, attention in enumerate(module.attention for module in encoder_layers(folded)):
        if attention.num_heads:
            own = gates[encoder.config.head_span(layer)]
            columns = torch.where(own > 0, own, 1.0).repeat_interleave(encoder.config.head_sizes(layer)[1])
            attention.output.weight.mul_(columns)
    return folded
