"""What a task says of itself: its layers, how its output is compared, and what a lower precision may cost it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from model.config import EncoderConfig
from model.packing import Packing

Array = NDArray[np.floating[Any]]


class Encoded(NamedTuple):
    """What a task's layers read.

    Attributes:
        hidden: [T, D], the last layer's output of the real tokens.
        last_hidden_state: [B, S, D], the same in rows; padding repeats a text's last token.
        tokens: where the real tokens stand.
        token_embeddings: [vocabulary, D or token_size], the table that the network begins with.
    """

    hidden: Tensor
    last_hidden_state: Tensor
    tokens: Packing
    token_embeddings: Tensor


class Threshold(NamedTuple):
    """What one figure of a lower precision may be."""

    figure: str
    least: float = -np.inf
    most: float = np.inf

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Whether it is within; a figure that is no number is not."""
        return self.least <= figures[self.figure] <= self.most

    def __str__(self) -> str:
        return f"{self.figure} at least {self.least}" if self.least > -np.inf else f"{self.figure} at most {self.most}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDefinition:
    """A task, whole but for its settings, which stand in `model.tasks.settings`.

    Attributes:
        make_layers: the module that maps `Encoded` to the task's output.
        is_per_token: whether the output is [B, S, ...], of which only real tokens count; else it is [B, ...].
        measure: figures of how far a lower precision is from float32, from one array a text of each.
        thresholds: what those figures may be, by precision.
    """

    make_layers: Callable[[EncoderConfig], nn.Module]
    is_per_token: bool
    measure: Callable[[Sequence[Array], Sequence[Array]], dict[str, float]]
    thresholds: Mapping[str, tuple[Threshold, ...]]


def cosines(found: Array, expected: Array) -> NDArray[np.float64]:
    """The cosine of each row of one [N, D] with the other's, [N], in float64; NaN for a row of zeros."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        result: NDArray[np.float64] = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return result
