"""How far a graph's tensors are from PyTorch's: the tolerance, and the largest differences over all batches."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.errors import ParityError

GATED = "gated"  # prefix of outputs under gates
FAR_ABOVE = 10  # times the tolerance: more than rounding explains, so the rest of the grid is skipped


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a tensor may be from its reference, relative to the reference's largest value (or 1).

    Attributes:
        largest: of any element.
        mean: over the tensor; tells a wrong graph from a few elements that round to the other side.
        rounding: or this many times PyTorch's own largest error in the encoder's precision, if that
            is more; 0 for no such allowance. Rounding grows with depth and differs from text to text: an attention of
            all-mpnet-base-v2 (12 layers) is 9.4e-6 from float64 in PyTorch and 1.1e-5 in the graph, on the same tokens.
    """

    largest: float
    mean: float
    rounding: float = 0.0


@dataclass(slots=True)
class Parity:
    """Largest differences found so far, relative to the largest reference value (at least 1).

    Attributes:
        cases: batches compared.
        longest: tokens of the longest row among them.
        differences: of the graph, by output.
        scales: the largest reference value of each output.
        rounding: of PyTorch's evaluation in the encoder's own precision, by output, if it was measured.
    """

    cases: int = 0
    longest: int = 0
    differences: dict[str, float] = field(default_factory=dict)
    rounding: dict[str, float] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)

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
            ParityError: another shape, a value on either side that is not finite, or a difference above the tolerance;
                where rounding is allowed for, only one far above, since `judge` knows how much at the end.
        """
        if found.shape != expected.shape:
            raise ParityError(f"{name} has shape {found.shape}, the encoder gives {expected.shape}")
        if not found.size:
            return
        if not np.isfinite(found).all():
            raise ParityError(f"{name} holds values that are not finite")
        if not (np.isfinite(expected).all() and (rounded is None or np.isfinite(rounded).all())):
            raise ParityError(f"the PyTorch encoder's {name} holds values that are not finite: are its weights?")
        scale = max(1.0, float(np.abs(expected).max()))
        error = np.abs(found - expected)
        worst, mean = float(error.max()) / scale, float(error.mean()) / scale
        largest = tolerance.largest if rounded is None else FAR_ABOVE * tolerance.largest
        if not (worst <= largest and mean <= tolerance.mean):  # so that NaN does not pass
            raise ParityError(
                f"{name} differs from the PyTorch encoder by {worst:.2e} at most and {mean:.2e} on average, relative "
                f"to {scale:.3g}; allowed are {tolerance.largest:.0e} and {tolerance.mean:.0e}"
            )
        self.differences[name] = max(self.differences.get(name, 0.0), worst)
        output = _output(name)
        self.scales[output] = max(self.scales.get(output, 0.0), float(np.abs(expected).max()))
        if rounded is not None:
            rounding = float(np.abs(rounded - expected).max()) / scale
            self.rounding[output] = max(self.rounding.get(output, 0.0), rounding)

    def count(self, sequence: int) -> None:
        """Counts a compared batch, whose longest row has `sequence` tokens."""
        self.cases += 1
        self.longest = max(self.longest, sequence)

    def judge(self, tolerance: Tolerance) -> None:
        """Judges all batches together: an output's largest difference by PyTorch's largest rounding of that output.

        Raises:
            ParityError: it is above the tolerance.
        """
        for name, worst in self.differences.items():
            rounding = self.rounding.get(_output(name), 0.0)
            scale = self.scales.get(_output(name), 1.0) if tolerance.rounding else 1.0
            allowed = tolerance.largest * min(1.0, scale)  # all values of an output may be small
            if not (worst <= allowed or worst <= tolerance.rounding * rounding):
                raise ParityError(
                    f"{name} differs from the PyTorch encoder by {worst:.2e} at most; allowed are "
                    f"{allowed:.0e}, or {tolerance.rounding:g} times PyTorch's own rounding of {rounding:.2e}"
                )

    def to_dict(self, tolerance: Tolerance) -> dict[str, Any]:
        """The figures, for the manifest: layers together."""
        figures = {"cases": self.cases, "longest": self.longest, "tolerance": tolerance.largest}
        rounding = {"rounding": self.rounding} if self.rounding else {}
        return {**_by_kind(self.differences), **figures, **rounding}


def _output(name: str) -> str:
    """What a name is of: the layers of an output together, with and without gates."""
    return name.removeprefix(f"{GATED}.").split(".")[0]


def _by_kind(differences: dict[str, float]) -> dict[str, float]:
    """Largest by kind of output: layers of a kind together, and everything under gates."""
    kinds = {"attentions": 0.0, "value_norms": 0.0, GATED: 0.0}  # of a network without heads there are none
    for name, difference in differences.items():
        kind = name.split(".")[0]
        kinds[kind] = max(kinds.get(kind, 0.0), difference)
    return kinds
