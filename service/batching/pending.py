"""A request that waits for its results: one future, resolved on its own event loop.

It does not know the queue. What the batcher's threads do to it happens under the batcher's lock.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

from service.batching.jobs import Job, JobResult
from service.batching.queued_texts import QueuedRequest, QueuedText


class PendingRequest(QueuedRequest):
    """A request in the batcher.

    Attributes:
        jobs: its texts, until it is over.
        deadline: `time.monotonic()` value after which nothing more is run for it, or None.
        loop: the event loop that waits for it.
        future: done when its outcome is known: its results, or the failure of the first text that failed.
        is_settled: whether its outcome is known, or nobody waits for it any more; nothing is run for it then.
    """

    __slots__ = ("_error", "_results", "deadline", "future", "is_settled", "jobs", "loop")

    def __init__(self, jobs: Sequence[Job], deadline: float | None, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.jobs = jobs
        self.deadline = deadline
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()
        self.is_settled = False
        self._error: Exception | None = None
        self._results: dict[int, JobResult] = {}

    def queued_texts(self) -> list[QueuedText["PendingRequest"]]:
        """Its texts, as the queue takes them.

        Raises:
            ValueError: a text has no tokens.
        """
        if not all(len(job.input_ids) for job in self.jobs):
            raise ValueError("a job has no input_ids: at least one token a text is needed")
        return [QueuedText(self, i, len(job.input_ids), job.attention_layers) for i, job in enumerate(self.jobs)]

    def is_wanted(self, now: float) -> bool:
        """Whether anybody still waits for it."""
        return not self.is_settled and (self.deadline is None or now < self.deadline)

    def complete(self, index: int, result: JobResult) -> bool:
        """Takes in one text's result; returns whether that settled the request, as its last one."""
        if self.is_settled:
            return False
        self._results[index] = result
        self.is_settled = len(self._results) == len(self.jobs)
        return self.is_settled

    def fail(self, error: Exception) -> bool:
        """Fails the whole request; returns whether that settled it."""
        if self.is_settled:
            return False
        self._error = error
        self.is_settled = True
        return True

    def resolve(self) -> None:
        """Tells whoever waits that the outcome is known. Called on the request's event loop."""
        if not self.future.done():
            self.future.set_result(None)

    def outcome(self) -> list[JobResult]:
        """Its results, in the order of its texts, or its failure raised."""
        if self._error is not None:
            raise self._error
        return [self._results[index] for index in range(len(self.jobs))]

    def forget(self) -> None:
        """Drops texts and outcome. The queue may hold the request, and an error what it passed through, long after."""
        self.jobs = ()
        self._error = None
        self._results = {}


def deliver(settled: Iterable[PendingRequest]) -> None:
    """Resolves settled requests from another thread, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[PendingRequest]] = {}
    for request in settled:
        by_loop.setdefault(request.loop, []).append(request)
    for loop, requests in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_resolve, requests)


def _resolve(requests: list[PendingRequest]) -> None:
    for request in requests:
        request.resolve()
