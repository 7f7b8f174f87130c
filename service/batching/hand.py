"""What one worker holds. Guarded by the lock of the workers."""

from collections import deque

from service.batching.entries import Entry
from service.batching.jobs import Job
from service.batching.pending import Pending
from service.inference.backend import Cancellation


class Hand:
    """What one worker took from the queue: the batch it runs, and the texts of a failed one that it runs again."""

    __slots__ = ("again", "cancellation", "jobs", "running")

    def __init__(self) -> None:
        self.cancellation = Cancellation()
        self.running: list[Entry[Pending]] = []
        self.jobs: list[Job] = []
        self.again: deque[Entry[Pending]] = deque()

    def begin(self, entries: list[Entry[Pending]]) -> None:
        """Runs these next, or nothing; their requests may be over, and know their texts no more, before the run is."""
        self.running = entries
        self.jobs = [entry.flow.jobs[entry.index] for entry in entries]
        self.cancellation = Cancellation()

    def end_unwanted_run(self, now: float) -> None:
        """Ends the run where nobody waits for any of its texts."""
        if self.running and not any(entry.flow.is_wanted(now) for entry in self.running):
            self.cancellation.cancel()

    def entries(self) -> list[Entry[Pending]]:
        """All that was taken and is not done."""
        return [*self.running, *self.again]

    def wanted_again(self, now: float) -> list[Entry[Pending]]:
        """What is still to be run again, of those that anybody waits for."""
        return [entry for entry in self.again if entry.flow.is_wanted(now)]
