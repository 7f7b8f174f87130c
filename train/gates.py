"""Learns which heads to keep while the network learns to do without the others, and then removes them.

Voita et al. 2019 (arXiv 1905.09418) learned such gates for translation, with a penalty on their number; here a target
is given, and the multipliers of Wang et al. 2020 find the penalty.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.checkpoint import require_embedding
from export.heads.subject import find_subject
from export.pruning.removal import remove_heads
from model.encoder import Encoder
from train.distillation import Distillation, Texts, Weights, read_material
from train.embedding import encoder_layers
from train.errors import RunError
from train.hard_concrete import HardConcreteGates
from train.seeds import generator_of
from train.settings import RunSettings
from train.supported import require_fittable

TARGET_SHARE = 0.4  # of the run, in which the target rises from 0
DRAWN = 1  # apart from the numbers of a step that replace tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class GateSettings:
    """What is learned, and how many heads go.

    Attributes:
        model: folder or hub id; None for the default model.
        texts: files with one text a line.
        held_out: file of texts to judge by; None for a part of `texts`.
        remove: share of the heads that goes in the end.
        gate_rate: factor on the learning rate for the gates and their multipliers.
        weights: of the loss.
    """

    model: str | None
    texts: tuple[Path, ...]
    held_out: Path | None = None
    remove: float
    gate_rate: float = 100.0
    weights: Weights = field(default_factory=Weights)


class GatedEncoder(nn.Module):
    """A network, and the gates on its heads."""

    def __init__(self, encoder: Encoder, gates: HardConcreteGates) -> None:
        super().__init__()
        self.encoder = encoder
        self.gates = gates


class Gates(Distillation):
    """The recipe of `polyhead train gates`."""

    command = "gates"

    def __init__(self, settings: GateSettings, run: RunSettings, material: Texts | None = None) -> None:
        """Reads everything, and puts a gate on every head.

        Args:
            settings: what is learned.
            run: of the loop.
            material: the texts, where they were read before; None reads the files.

        Raises:
            SourceError: the model or a file cannot be used.
            RunError: no head would go.
        """
        whole = find_subject(settings.model).checkpoint
        require_embedding(whole, "gates are judged")
        require_fittable(whole.encoder.config)
        heads = sum(whole.encoder.config.num_heads)
        self.count = round(settings.remove * heads)
        if not self.count:
            raise RunError(f"--remove {settings.remove:g} of {heads} heads is none: give a larger share")
        super().__init__(
            remove_heads(whole.encoder, ()),  # a copy
            whole,
            material or read_material(settings.texts, settings.held_out),
            settings.weights,
            run,
            described={"remove": settings.remove, "gate_rate": settings.gate_rate},
            layers=range(whole.encoder.config.num_layers),
        )
        self.gates = HardConcreteGates(heads).to(self.device)
        self.module = GatedEncoder(self.encoder, self.gates)
        self.rate_factors = {"gates": settings.gate_rate}

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """The gradient of the distillation loss under drawn gates, and of the penalty on their number."""
        batch = self.batch(places, step)
        gates = self.gates.draw(len(batch.lengths), generator_of(self.seed, step, DRAWN))
        target = self.count / len(self.gates.log_alpha) * min(1.0, share / TARGET_SHARE)
        loss = self.loss(batch, share, gates)
        # Gradients of all processes are added, and each has the whole penalty.
        (loss + self.gates.penalty(target) / self.processes.count).backward()  # type: ignore[no-untyped-call]
        self.gates.ascend()
        return loss.item()

    def network(self) -> Encoder:
        """The network without the heads whose gates are least open; what is left of the others' gates is folded in."""
        kept = fold_gates(self.encoder, self.gates.settled())
        return remove_heads(kept, self._closed())

    def findings(self) -> dict[str, Any]:
        """The heads that go, as `heal --heads` reads them."""
        return {"removed": [list(self.encoder.config.head_place(head)) for head in self._closed()]}

    def evaluate(self) -> dict[str, float]:
        """Cosines to the whole network's vectors, and the share of the gates that is expected to be closed."""
        return {**super().evaluate(), "closed": float(self.gates.expected_closed().detach())}

    def _closed(self) -> list[int]:
        return self.gates.least_open()[: self.count]


def fold_gates(encoder: Encoder, gates: Tensor) -> Encoder:
    """A copy whose output projections hold the gates [H] of their heads; gates of 0 are left as 1."""
    folded = remove_heads(encoder, ())
    for layer, attention in enumerate(module.attention for module in encoder_layers(folded)):
        if attention.num_heads:
            own = gates[encoder.config.head_span(layer)]
            columns = torch.where(own > 0, own, 1.0).repeat_interleave(encoder.config.d_v)
            attention.output.weight.mul_(columns)
    return folded
