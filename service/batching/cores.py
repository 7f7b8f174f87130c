"""Cores shared between the models of one process."""

import threading
import time
from collections.abc import Callable

KEPT_SECONDS = 0.2  # after a run, that its core is left to its model: the next request of a steady client is there
LOOK_SECONDS = 0.05  # between two looks of a worker that waits


class CoreShares:
    """Cores shared between models, so that a flood on one does not slow the others.

    The kernel alone would share them by thread: a flooded model has a thread running on every core, and a request for
    another one would run at half the speed. So a model runs on the cores that the others leave, and never on fewer than
    its fair share; a core that another model has used within a moment is left to it.
    """

    def __init__(self, cores: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.cores = max(1, cores)
        self.clock = clock
        self.changed = threading.Condition()
        self.members: list[CoreShare] = []

    def join(self) -> "CoreShare":
        """The share of one more model."""
        with self.changed:
            member = CoreShare(self)
            self.members.append(member)
        return member

    def leave(self, member: "CoreShare") -> None:
        """Forgets a model that is gone."""
        with self.changed:
            self.members.remove(member)
            self.changed.notify_all()


class CoreShare:
    """One model's part, entered around each run."""

    def __init__(self, shares: CoreShares) -> None:
        self._shares = shares
        self._running = self._used = 0
        self._kept_until = 0.0

    def __enter__(self) -> None:
        """Waits until the model may run on one core more."""
        shares = self._shares
        with shares.changed:
            while self._running >= self.most(shares.clock()):
                shares.changed.wait(LOOK_SECONDS)
            self._running += 1
            self._keep()

    def __exit__(self, *_: object) -> None:
        """That run has ended."""
        with self._shares.changed:
            self._keep()
            self._running -= 1
            self._shares.changed.notify_all()

    def most(self, now: float) -> int:
        """Cores that it may run on at present."""
        cores, others = self._shares.cores, [other for other in self._shares.members if other is not self]
        used = [wanted for other in others if (wanted := other.wanted(now))]
        fair = max(1, cores // (1 + len(used)))
        return max(fair, cores - sum(min(wanted, fair) for wanted in used))

    def wanted(self, now: float) -> int:
        """Cores that it uses, or used a moment ago."""
        return max(self._running, self._used if now < self._kept_until else 0)

    def _keep(self) -> None:
        now = self._shares.clock()
        self._used = self.wanted(now)
        self._kept_until = now + KEPT_SECONDS
