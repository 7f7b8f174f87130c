"""How far a run is, and what it has measured: everything of a checkpoint that is no tensor."""

from dataclasses import asdict, dataclass, field
from typing import Any

POINTS = 200  # of the loss curve


@dataclass(kw_only=True)
class Progress:
    """The state of a run.

    Attributes:
        step: steps taken.
        seconds: time that they took, over all sessions.
        tokens: tokens that they read.
        best: the best score so far; None before the first.
        best_step: where it was.
        losses: [step, mean loss since the last point, learning rate].
        evaluations: figures by name, with their step.
        loss_sum: of the steps since the last point.
        loss_count: how many these are.
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    best: float | None = None
    best_step: int = 0
    losses: list[tuple[int, float, float]] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    loss_sum: float = 0.0
    loss_count: int = 0

    def take(self, loss: float, rate: float, *, steps: int) -> None:
        """Counts a step."""
        self.step += 1
        self.loss_sum += loss
        self.loss_count += 1
        if self.loss_count >= max(1, steps // POINTS) or self.step == steps:
            self.losses.append((self.step, self.loss_sum / self.loss_count, rate))
            self.loss_sum, self.loss_count = 0.0, 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON types; `Progress(**...)` reverses it."""
        return asdict(self)
