"""How far a graph's tensors are from their reference, and how far they may be."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.errors import ParityError
from model.artifact import LAST_HIDDEN_STATE, POOLED


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a tensor may be from its reference, relative to the reference's largest value (or 1).

    Attributes:
        largest: of any element.
        mean: over the tensor; tells a wrong graph from a few elements that round to the other side.
        rounding: or so many times as far as PyTorch's own evaluation in the encoder's precision is, where that is more.
            Rounding grows with depth, and from text to text: all-mpnet-base-v2, 12 layers, is 9.4e-6 from float64 in
            PyTorch and 1.1e-5 in the graph, on the same attention of the same random tokens.
    """

    largest: float
    mean: float
    rounding: float = 0.0


@dataclass(slots=True)
class Parity:
    """Largest differences found so far, relative to the largest reference value (or 1, where that is smaller).

    Attributes:
        cases: batches compared.
        longest: tokens of the longest row among them.
        differences: of the graph, by output.
        rounding: of PyTorch's evaluation in the encoder's own precision, by output; where it was asked for.
    """

    cases: int = 0
    longest: int = 0
    differences: dict[str, float] = field(default_factory=dict)
    rounding: dict[str, float] = field(default_factory=dict)

    def record(
        self,
        name: str,
        found: NDArray[np.float32],
        expected: NDArray[np.float64],
        tolerance: Tolerance,
        rounded: NDArray[np.float32] | None = None,
    ) -> None:
        """Compares one tensor.

        Args:
            name: of the output.
            found: the graph's.
            expected: the reference.
            tolerance: how far apart they may be.
            rounded: PyTorch's in the encoder's own precision, for `tolerance.rounding`.

        Raises:
            ParityError: another shape, a value that is not finite, or a difference above the tolerance.
        """
        if found.shape != expected.shape:
            raise ParityError(f"{name} has shape {found.shape}, the encoder gives {expected.shape}")
        if not found.size:
            return
        if not np.isfinite(found).all():
            raise ParityError(f"{name} holds values that are not finite")
        scale = max(1.0, float(np.abs(expected).max()))
        error = np.abs(found - expected)
        worst, mean = float(error.max()) / scale, float(error.mean()) / scale
        rounding = 0.0 if rounded is None else float(np.abs(rounded - expected).max()) / scale
        largest = max(tolerance.largest, tolerance.rounding * rounding)
        if worst > largest or mean > tolerance.mean:
            raise ParityError(
                f"{name} differs from the PyTorch encoder by {worst:.2e} at most and {mean:.2e} on average, relative "
                f"to {scale:.3g}; allowed are {largest:.0e} and {tolerance.mean:.0e}"
            )
        self.differences[name] = max(self.differences.get(name, 0.0), worst)
        if rounded is not None:
            self.rounding[name] = max(self.rounding.get(name, 0.0), rounding)

    def to_dict(self, tolerance: Tolerance) -> dict[str, Any]:
        """The figures, for the manifest: layers together."""
        figures = {"cases": self.cases, "longest": self.longest, "tolerance": tolerance.largest}
        rounding = {"rounding": _by_kind(self.rounding)} if self.rounding else {}
        return {**_by_kind(self.differences), **figures, **rounding}


def _by_kind(differences: dict[str, float]) -> dict[str, float]:
    """Largest by kind of output: layers of a kind together, and everything under gates."""
    kinds = {POOLED: 0.0, LAST_HIDDEN_STATE: 0.0, "attentions": 0.0, "value_norms": 0.0, "gated": 0.0}
    for name, difference in differences.items():
        kinds[name.split(".")[0]] = max(kinds[name.split(".")[0]], difference)
    return kinds
