"""From requests to results: one queue, and worker threads that pull from it themselves.

It knows neither HTTP nor what a backend is made of. The event loop only puts requests into the queue; a worker that
becomes free forms its next batch, runs it, and wakes the loop for the requests whose last text is done. There is no
dispatcher thread and no polling.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence

from service.batching.admission import CLOSED, delay_refusal
from service.batching.executor import BatchExecutor
from service.batching.jobs import Job, JobResult, PendingRequest
from service.batching.queue import BatchLimits, JobQueue
from service.errors import DeadlineExceeded, NotReady, Overloaded, ServiceError, TooLarge
from service.inference.backend import Backend
from service.observability.stages import BatchRecord

_MAX_PAIRS = 2**19  # attention weights of a batch a head, over all wanted layers: 25 MB at 12 heads
_FULL_PADDING = 0.1  # from a full queue 3 % more texts a second than with 0.25, from an emptier one 3 % fewer


class Batcher:
    """Runs texts on a backend, in batches, fairly between requests.

    `submit` is called on an event loop; everything else may be called from any thread.

    Attributes:
        max_queue_tokens: tokens that may wait, of all requests together, and so the most one request may have.
        executor: the worker threads, and how fast they work.

    Args:
        backend: closed with the batcher.
        max_batch_tokens: padded tokens of a batch; a longer text runs alone.
        max_queue_tokens: the attribute.
        max_queue_delay: seconds a request may have to wait, beside 16 times its own run; one that would is refused.
        on_batch: called on the worker's thread after every batch, once its results are on their way.
        max_padding: share of a batch's padded tokens that may be padding. Only attention computes padding,
            the rest of the network runs on real tokens. Without any, few texts would find others to run with.
        max_run_seconds: a run that takes longer is taken for hanging.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        workers: int,
        max_batch_tokens: int,
        max_queue_tokens: int,
        max_queue_delay: float = math.inf,
        on_batch: Callable[[BatchRecord], object] = lambda _: None,
        max_padding: float = 0.25,
        max_run_seconds: float = 60.0,
    ) -> None:
        limits = BatchLimits(
            max_tokens=max_batch_tokens, max_padding=max_padding, max_pairs=_MAX_PAIRS, max_full_padding=_FULL_PADDING
        )
        self.max_queue_tokens = max_queue_tokens
        self._max_queue_delay = max_queue_delay
        self._is_open = False
        self._lock = threading.Lock()
        self._queue: JobQueue[PendingRequest] = JobQueue(limits)
        self.executor = BatchExecutor(
            backend, self._queue, self._lock, size=workers, on_batch=on_batch, max_run_seconds=max_run_seconds
        )

    def start(self) -> None:
        """Starts the workers; once."""
        self.executor.start()
        self._is_open = True

    async def submit(self, jobs: Sequence[Job], *, deadline: float | None = None) -> list[JobResult]:
        """Runs the texts of one request and returns their results in the same order.

        Once the caller stops waiting or the deadline passes, what is left of the request leaves the queue at once. A
        run is cancelled once no request waits for any of its texts. Otherwise it goes on, and the results of this
        request are dropped.

        Args:
            jobs: the texts.
            deadline: `time.monotonic()` value after which the answer is worth nothing.

        Raises:
            TooLarge: the request alone is larger than the whole queue. Not `Overloaded`: trying again cannot help.
            Overloaded: the queue is full; `retry_after` is when it will have room, by the measured drain rate.
            DeadlineExceeded: the deadline passed, before or while the request waited.
            InferenceFailed: the backend failed on a text of the request, when run alone.
            NotReady: not started, closed, or without workers.
        """
        if not jobs:
            return []
        request = PendingRequest(jobs, deadline, asyncio.get_running_loop())
        self._enqueue(request)
        timer = None
        if deadline is not None:
            timer = request.loop.call_later(deadline - time.monotonic(), self._expire, request)
        try:
            await request.future
            return request.outcome()
        finally:
            if timer is not None:
                timer.cancel()
            if not request.is_settled:
                self._withdraw(request)
            request.forget()

    def early_refusal(self, tokens: int, others: int = 0, refused: int = 0) -> Overloaded | None:
        """Why the queue would refuse a request that is not read yet; None if it would not.

        Under overload most requests are refused. Reading, parsing and tokenising them would slow the others, and so
        would raising this.

        Args:
            tokens: that it has, about.
            others: requests like it that are on their way to the queue.
            refused: tokens of the clients that were refused and come again. Told to come at the workers' own rate they
                would leave them idle by chance; they are told half the time.
        """
        with self._lock:
            return self._delay_refusal(tokens, others=others, again=refused // 2)

    @property
    def queued_texts(self) -> int:
        """Texts that wait for a worker."""
        return self._queue.texts

    @property
    def queued_tokens(self) -> int:
        """Their tokens."""
        return self._queue.tokens

    @property
    def oldest_age(self) -> float:
        """Seconds that the oldest waiting request has been there; 0 for an empty queue."""
        with self._lock:
            return self._queue.oldest_age(time.monotonic())

    def is_alive(self) -> bool:
        """Whether every worker thread lives and none has been in one run for too long."""
        return self._is_open and self.executor.is_alive()

    def close(self, timeout: float) -> bool:
        """Takes nothing more, finishes the queued texts, joins the workers and closes the backend. Blocks.

        Returns:
            False if work was left after `timeout` seconds; its requests have failed with `NotReady`. True the second
            time, when there is nothing to do.
        """
        with self._lock:
            was_open, self._is_open = self._is_open, False
        return not was_open or self.executor.close(timeout)

    def _enqueue(self, request: PendingRequest) -> None:
        """Queues a request, or refuses it before anything of it is queued."""
        texts = request.queued_texts()
        tokens = sum(text.length for text in texts)
        now = time.monotonic()
        with self._lock:
            refusal = self._refusal(request, tokens, now)
            if refusal is None:
                self._queue.add(request, texts, now)
                self.executor.wake(len(texts))
                return
        try:
            raise refusal
        finally:
            del refusal  # it holds this frame, which would hold it until a collection of garbage finds them

    def _refusal(self, request: PendingRequest, tokens: int, now: float) -> ServiceError | None:
        if not self._is_open:
            return NotReady(CLOSED)
        if not request.is_wanted(now):
            return DeadlineExceeded()
        if tokens > self.max_queue_tokens:
            limit = self.max_queue_tokens
            return TooLarge(f"the request has {tokens} tokens, the queue takes {limit} at most: send fewer texts")
        if (excess := self._queue.tokens + tokens - self.max_queue_tokens) > 0:
            retry_after = self.executor.rate.retry_after(excess, self.executor.size)
            return Overloaded("too many tokens are waiting; try again later", retry_after=retry_after)
        time_left = math.inf if request.deadline is None else request.deadline - now
        return self._delay_refusal(tokens, time_left)

    def _delay_refusal(
        self, tokens: int, time_left: float = math.inf, *, others: int = 0, again: int = 0
    ) -> Overloaded | None:
        return delay_refusal(
            self.executor.rate,
            tokens,
            ahead=self._queue.ahead_of(tokens) + others * tokens,
            workers=self.executor.size,
            max_delay=self._max_queue_delay,
            time_left=time_left,
            again=again,
        )

    def _expire(self, request: PendingRequest) -> None:
        if self._withdraw(request, DeadlineExceeded()):
            request.resolve()

    def _withdraw(self, request: PendingRequest, error: DeadlineExceeded | None = None) -> bool:
        """Ends a request that is not settled yet; returns whether it was not."""
        with self._lock:
            was_waiting = request.fail(error)
            if was_waiting:
                self._queue.remove(request)
                self.executor.cancel_unwanted_runs()
        return was_waiting
