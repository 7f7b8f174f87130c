"""One worker thread, and the texts it took from the queue."""

import threading
from collections import deque
from collections.abc import Callable

from service.batching.jobs import Job
from service.batching.pending import PendingRequest
from service.batching.queued_texts import QueuedText
from service.inference.backend import Cancellation


class Worker:
    """One worker thread. All but `thread` is guarded by the lock of its pool.

    Attributes:
        thread: the thread.
        busy_since: when its current run began (`time.monotonic`), or None between runs.
        is_dismissed: whether the pool gave up on it. It is to return, and results it still brings are ignored.
        has_returned: whether its work ended as it should.
        has_died: whether its work ended otherwise.
        running: the texts it runs.
        jobs: what is run for them. Kept here: a request may be over before its run is, and forgets its jobs then.
        retries: texts of a batch that failed, which it runs again one by one.
        cancellation: ends the current run early.
    """

    __slots__ = (
        "busy_since",
        "cancellation",
        "has_died",
        "has_returned",
        "is_dismissed",
        "jobs",
        "retries",
        "running",
        "thread",
    )

    def __init__(self, name: str, main: Callable[["Worker"], None]) -> None:
        self.thread = threading.Thread(target=main, args=(self,), name=name, daemon=True)
        self.busy_since: float | None = None
        self.is_dismissed = False
        self.has_returned = False
        self.has_died = False
        self.running: list[QueuedText[PendingRequest]] = []
        self.jobs: list[Job] = []
        self.retries: deque[QueuedText[PendingRequest]] = deque()
        self.cancellation = Cancellation()

    def begin(self, texts: list[QueuedText[PendingRequest]], now: float) -> None:
        """Notes the texts of the run that begins now."""
        self.running = texts
        self.jobs = [text.request.jobs[text.index] for text in texts]
        self.cancellation = Cancellation()
        self.busy_since = now

    def rest(self) -> None:
        """Notes that nothing runs, and lets go of what ran."""
        self.busy_since = None
        self.running, self.jobs, self.cancellation = [], [], Cancellation()

    def cancel_if_unwanted(self, now: float) -> None:
        """Ends the run if nobody waits for any of its texts."""
        if self.running and not any(text.request.is_wanted(now) for text in self.running):
            self.cancellation.cancel()

    def requests(self) -> set[PendingRequest]:
        """The requests of all texts that it took and has not done."""
        return {text.request for text in (*self.running, *self.retries)}
