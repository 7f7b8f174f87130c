"""What a task says of itself to the exporter: what it is read from and how, and what a lower precision may cost it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from export.errors import UnsupportedModel
from export.families.family import Family, TaskLayers, pick
from export.pipeline import Pipeline
from model.config import EncoderConfig

Rows = Sequence[NDArray[np.floating]]  # what the task is for, an array a text


class Threshold(NamedTuple):
    """Bounds of a lower precision's figure, or of the one that some networks of the task have `instead`."""

    figure: str
    least: float = -np.inf
    most: float = np.inf
    instead: str = ""

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Whether the figure is within the bounds; one that is no number is not, nor is one that was not measured."""
        value = figures.get(self.figure, figures.get(self.instead, np.nan))
        return self.least <= value <= self.most

    def __str__(self) -> str:
        bound = f"at least {self.least}" if self.least > -np.inf else f"at most {self.most}"
        return f"{' or '.join(filter(None, (self.figure, self.instead)))} {bound}"


class TaskSource(NamedTuple):
    """A checkpoint, opened: what surrounds the network, its config.json, its family and all tensors of its folder."""

    pipeline: Pipeline
    described: Mapping[str, Any]
    family: Family
    tensors: Mapping[str, Tensor]

    def pick(self, layers: TaskLayers | None) -> tuple[TaskLayers, dict[str, Tensor]]:
        """One of the family's tables, and the tensors of its layers by the encoder's names.

        Raises:
            UnsupportedModel: the family has no such table, or the checkpoint no such layers.
        """
        kind, own = self.described.get("model_type"), self.family.own_setting
        if layers is None:
            raise UnsupportedModel(f"task {self.pipeline.task} is not supported for networks of model_type {kind!r}")
        if own in self.described:
            raise UnsupportedModel(
                f"task {self.pipeline.task} is not supported for the own code of {kind}: it is for what `transformers` "
                f"saves, whose config.json does not say {own}"
            )
        state = pick(self.tensors, layers.names, prefixes=self.family.prefixes)
        has_output = "task_layers.output.weight" in state or "output" not in layers.names.values()
        if not state or not has_output:  # an embedder may have the layer before it
            raise UnsupportedModel(
                f"the checkpoint has no layers for task {self.pipeline.task}: expected {', '.join(layers.names)}; "
                f"{self.pipeline.found.sign}"
            )
        return layers, state


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskExport:
    """How a task is exported.

    Attributes:
        read: from a checkpoint to the network with its task, and the weights of the task's layers; an UnsupportedModel
            says what is not reproduced.
        measure: how far a graph's output is from float32's, from an array a text of each.
        thresholds: what those figures have to be, by precision.
    """

    read: Callable[[TaskSource, EncoderConfig], tuple[EncoderConfig, dict[str, Tensor]]]
    measure: Callable[[Rows, Rows], dict[str, float]]
    thresholds: Mapping[str, tuple[Threshold, ...]]
