"""What a task says of itself to the exporter: how it is read, and what a lower precision may cost it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from export.tasks.source import TaskSource
from model.config import EncoderConfig

Rows = Sequence[NDArray[np.floating]]  # what the task is for, an array a text


class Threshold(NamedTuple):
    """What a figure of a lower precision has to be."""

    figure: str
    least: float = -np.inf
    most: float = np.inf

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Whether the figure is within; one that is no number is not, one that was not measured is."""
        return self.figure not in figures or self.least <= figures[self.figure] <= self.most

    def __str__(self) -> str:
        bound = f"at least {self.least}" if self.least > -np.inf else f"at most {self.most}"
        return f"{self.figure} {bound}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskExport:
    """How a task is exported.

    Attributes:
        read: from a checkpoint to the network with its task, and the weights of the task's layers.
        measure: how far a graph's output is from float32's, from an array a text of each.
        thresholds: what those figures have to be, by precision.
    """

    read: Callable[[TaskSource, EncoderConfig], tuple[EncoderConfig, dict[str, Tensor]]]
    measure: Callable[[Rows, Rows], dict[str, float]]
    thresholds: Mapping[str, tuple[Threshold, ...]]
