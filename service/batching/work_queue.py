"""Work of many requests on threads, in fair turns: texts to tokenise, or to explain. It knows neither.

Requests are cut into parts, which take turns by the rule of the batcher's queue. What would wait too long is refused.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from service.batching.admission import CLOSED, DrainRate, refuse
from service.batching.jobs import PendingRequest, deliver
from service.batching.queue import BatchLimits, JobQueue, QueuedText
from service.errors import DeadlineExceeded, InternalError, NotReady, Overloaded
from service.machine import lower_thread_priority

T = TypeVar("T")

_ONE_PART = BatchLimits(max_tokens=1, max_padding=0.0, max_pairs=1)  # whatever its size, a part runs alone


class Part(NamedTuple):
    """A part of a request, done in one go: what it costs, at least 1, and the work."""

    cost: int
    work: Callable[[], Any]


class _Request(PendingRequest):
    """Its results are its parts' results, and in the end what `join` makes of them."""

    __slots__ = ("join",)

    def __init__(self, parts: Sequence[Part], join: Callable[[list[Any]], Any]) -> None:
        super().__init__(parts)
        self.join = join


class WorkQueue:
    """Requests that wait for threads.

    Args:
        max_delay: seconds that a request may have to wait, beside 16 times its own work; one that would is refused.
        nice: how far the threads give way to others.
        before_part: called on the thread before each part; what it takes counts as no part's.
        after_part: called on the thread after each part, with what it cost.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        *,
        max_delay: float = math.inf,
        nice: int = 0,
        before_part: Callable[[], object] = lambda: None,
        after_part: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._before_part = before_part
        self._after_part = after_part
        self._lock = threading.Lock()
        self._queue: JobQueue[_Request] = JobQueue(_ONE_PART)
        self._at_work = 0  # what the parts cost that are being done
        self._idle = threads  # that the pool has nothing to do for
        self._rate = DrainRate(threads, max_delay)
        self._is_closed = False
        self.pool = ThreadPoolExecutor(threads, name, initializer=lower_thread_priority, initargs=(nice,))

    @property
    def waiting(self) -> int:
        """What the parts cost that wait for a thread."""
        return self._queue.tokens

    async def run(self, parts: Sequence[Part], join: Callable[[list[Any]], T], deadline: float | None = None) -> T:
        """Does the work of all parts of a request.

        Args:
            parts: at least one.
            join: makes the answer of what the parts gave, in their order; called on a thread too.
            deadline: `time.monotonic()` value after which no one waits any more; what is left is dropped then.

        Raises:
            Overloaded: the expected wait is too long; `retry_after` says when it will not be.
            DeadlineExceeded: the deadline passed.
            NotReady: closed.
            Exception: what the work raised; InternalError for what is no Exception.
        """
        seconds = math.inf if deadline is None else deadline - time.monotonic()
        if seconds <= 0:
            raise DeadlineExceeded()
        request = _Request(parts, join)
        try:
            self._add(request, seconds)
            try:
                async with asyncio.timeout(None if deadline is None else seconds):
                    await request.future
            except TimeoutError:
                raise DeadlineExceeded() from None
            answer: T = request.outcome()
            return answer
        finally:
            if not request.is_settled:
                with self._lock:
                    self._queue.remove(request)
                    request.settle()
            request.forget()

    def early_refusal(self, cost: int) -> Overloaded | None:
        """Why a request that costs this, which no one has read yet, would be refused; None if it would not."""
        with self._lock:
            return self._refusal(cost, math.inf)

    def close(self) -> None:
        """Ends the threads without waiting for them; requests that wait fail."""
        with self._lock:
            self._is_closed = True
            self._before_part, self._after_part = lambda: None, lambda _: None  # they may hold whose queue this is
            waiting = self._queue.requests()
        self.pool.shutdown(wait=False)
        for request in waiting:
            self._settle(request, NotReady(CLOSED))

    def _add(self, request: _Request, seconds: float) -> None:
        texts = [QueuedText(request, index, part.cost) for index, part in enumerate(request.parts)]
        with self._lock:
            if self._is_closed:
                raise NotReady(CLOSED)
            refuse(self._refusal(sum(text.length for text in texts), seconds))
            self._queue.add(request, texts, time.monotonic())
            for _ in range(min(len(texts), self._idle)):
                self.pool.submit(self._take_turns)
                self._idle -= 1

    def _refusal(self, cost: int, seconds: float) -> Overloaded | None:
        ahead = min(self._at_work, self._rate.workers * cost) + self._queue.ahead_of(cost)
        return self._rate.refusal(cost, ahead=ahead, time_left=seconds - self._rate.seconds_for(cost))

    def _take_turns(self) -> None:
        while cost := self._take_turn():
            self._after_part(cost)

    def _take_turn(self) -> int:
        """Does the part whose turn it is, on a thread of the pool; returns what it cost, 0 where none is left."""
        with self._lock:
            if self._is_closed or not (taken := self._queue.take(1)):
                self._idle += 1
                return 0
            (text,) = taken
            self._at_work += text.length
            request, cost, part = text.request, text.length, text.request.parts[text.index]
        try:
            self._before_part()
            started = time.monotonic()
            found = part.work()
            seconds = time.monotonic() - started
            with self._lock:
                self._rate.add(cost, seconds)
                is_last = request.complete(text.index, found)
            if is_last:
                request.results = request.join(request.results)
                self._settle(request)
        except BaseException as error:
            self._settle(request, error if isinstance(error, Exception) else InternalError())
        finally:
            with self._lock:
                self._at_work -= cost
        return cost

    def _settle(self, request: _Request, error: Exception | None = None) -> None:
        """Ends a request and tells its event loop, unless it has ended: what it has in the queue is dropped."""
        with self._lock:
            self._queue.remove(request)
            was_waiting = request.settle(error)
        if was_waiting:
            deliver([request])
