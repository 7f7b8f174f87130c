"""Explaining on threads of its own: from texts to what each of their tokens gives to the model's output.

A text of n tokens costs about n times as much to explain as to encode. So this work has a queue next to the batcher's,
threads that give way to the batcher's, and bounds: it is cut into runs of some tens of milliseconds, a request has at
most as many runs waiting as there are threads, and one that would wait too long is refused. It knows no HTTP.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from service.batching.admission import DrainRate, delay_refusal
from service.batching.queue import RequestSizes
from service.errors import DeadlineExceeded, InferenceFailed, NotReady
from service.inference.backend import Cancellation, Decomposer, Int64Array, TokenParts, WholeText
from service.machine import lower_thread_priority

logger = logging.getLogger(__name__)

NICE = 15  # the workers' is 5: with both busy, Linux gives these threads a tenth of a core's time
RUN_ROWS = 2048  # token vectors in a run, sources times tokens: its memory, and how soon another request has a turn
FIXED_ROWS = 20  # token vectors that take as long as what every run does besides (MiniLM-L6, Zen 3)
FAILED = "explaining failed; the log has the details"
CLOSED = "this process no longer takes work; another one may"


def source_runs(text: WholeText) -> list[Int64Array]:
    """The places of a text's tokens, in runs of nearly equal size."""
    size = len(text.input_ids)
    return np.array_split(np.arange(size), math.ceil(size / max(1, RUN_ROWS // size)))


@dataclass(frozen=True, slots=True)
class Decomposed:
    """The results of a request.

    Attributes:
        texts: one a text, in their order.
        queue_seconds: until its first run began.
        inference_seconds: from there to the end of its last.
    """

    texts: list[TokenParts]
    queue_seconds: float
    inference_seconds: float


class DecompositionQueue:
    """Explains texts with a decomposer that is loaded when first asked for.

    Args:
        load: loads it; called on a thread.
        threads: that run it.
        max_delay: seconds a request may have to wait, beside 16 times its own run.
        on_run: told after every run how many seconds of processor time it took.

    Attributes:
        waiting_rows: token vectors of all requests that wait or run.
    """

    def __init__(
        self,
        load: Callable[[], Decomposer],
        *,
        threads: int,
        max_delay: float = math.inf,
        on_run: Callable[[float], None] | None = None,
    ) -> None:
        self._load = load
        self._threads = threads
        self._max_delay = max_delay
        self._rate = DrainRate()
        self._on_run = on_run
        self.waiting_rows = 0
        self._sizes = RequestSizes()
        self._lock = threading.Lock()
        self._decomposer: Decomposer | None = None
        self._loading = threading.Lock()
        self._is_closed = False
        self._running: set[Cancellation] = set()
        self._executor = ThreadPoolExecutor(threads, "explain", initializer=lower_thread_priority, initargs=(NICE,))

    async def submit(self, texts: Sequence[WholeText], *, deadline: float | None = None) -> Decomposed:
        """Explains the texts of one request.

        Once the caller stops waiting or the deadline passes, runs are cancelled and the rest is dropped.

        Args:
            texts: each of at least one token.
            deadline: `time.monotonic()` value after which the answer is worth nothing.

        Raises:
            Overloaded: others wait, and the expected wait is too long, or leaves too little time.
            DeadlineExceeded: the deadline passed.
            InferenceFailed: the decomposer failed, or could not be loaded.
            NotReady: closed.
        """
        rows = sum(len(text.input_ids) ** 2 for text in texts)  # token vectors that are computed a layer
        cost = rows + FIXED_ROWS * sum(len(source_runs(text)) for text in texts)
        left = math.inf if deadline is None else deadline - time.monotonic()
        self._admit(rows, cost, left)
        try:
            async with asyncio.timeout(None if deadline is None else left):
                return await self._run(texts)
        except TimeoutError:
            raise DeadlineExceeded() from None
        finally:
            with self._lock:
                self.waiting_rows -= rows
                self._sizes.change(cost, 0)

    def close(self) -> None:
        """Takes nothing more, cancels the runs, and waits for its threads."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for cancellation in running:
            cancellation.cancel()
        self._executor.shutdown()  # waiting requests end at once, as `NotReady`
        self._decomposer = None

    def _admit(self, rows: int, cost: int, left: float) -> None:
        with self._lock:
            if self._is_closed:
                raise NotReady(CLOSED)
            if left <= 0:
                raise DeadlineExceeded()
            if not self.waiting_rows:  # tried, however slow the last runs were: only a run shows whether they still are
                left = math.inf
            refusal = delay_refusal(
                self._rate,
                cost,
                ahead=self._sizes.tokens_up_to(cost),  # of a larger request as many as this one has: runs take turns
                workers=self._threads,
                max_delay=self._max_delay,
                time_left=left - self._rate.seconds_for(cost, self._threads),
            )
            if refusal is not None:
                raise refusal
            self.waiting_rows += rows
            self._sizes.change(0, cost)

    async def _run(self, texts: Sequence[WholeText]) -> Decomposed:
        """Every run of every text, at most as many at once as there are threads: others have their turn between."""
        submitted, starts = time.monotonic(), list[float]()
        found: list[dict[int, TokenParts]] = [{} for _ in texts]
        runs = (
            (of_text, place, text, sources)
            for of_text, text in zip(found, texts, strict=True)
            for place, sources in enumerate(source_runs(text))
        )

        async def take_turns() -> None:
            for of_text, place, text, sources in runs:
                of_text[place] = await self._on_thread(text, sources, starts)

        turns = [asyncio.ensure_future(take_turns()) for _ in range(self._threads)]
        try:
            await asyncio.gather(*turns)
        finally:
            for turn in turns:
                turn.cancel()
        began = min(starts)
        texts_parts = [_joined([of_text[place] for place in sorted(of_text)]) for of_text in found]
        return Decomposed(texts_parts, began - submitted, time.monotonic() - began)

    async def _on_thread(self, text: WholeText, sources: Int64Array, starts: list[float]) -> TokenParts:
        cancellation = Cancellation()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, self._decompose, text, sources, starts, cancellation)
        except RuntimeError as error:  # the executor takes nothing more
            raise NotReady(CLOSED) from error
        finally:
            cancellation.cancel()

    def _decompose(
        self, text: WholeText, sources: Int64Array, starts: list[float], cancellation: Cancellation
    ) -> TokenParts:
        """One run, on one of the threads."""
        with self._lock:
            if self._is_closed:
                raise NotReady(CLOSED)
            self._running.add(cancellation)
        try:
            decomposer, started, spent = self._loaded(), time.monotonic(), time.thread_time()
            starts.append(started)
            try:
                found = decomposer.run(text, sources, cancellation)
            finally:
                if self._on_run is not None:
                    self._on_run(time.thread_time() - spent)
            with self._lock:
                self._rate.add(FIXED_ROWS + len(sources) * len(text.input_ids), time.monotonic() - started)
            return found
        except Exception as error:
            if cancellation.is_cancelled:
                raise NotReady(CLOSED) from error  # no client waits for it, unless the queue was closed
            logger.exception("explaining a text of %d tokens failed", len(text.input_ids))
            raise InferenceFailed(FAILED) from error
        finally:
            with self._lock:
                self._running.discard(cancellation)

    def _loaded(self) -> Decomposer:
        with self._loading:
            if self._decomposer is None:
                self._decomposer = self._load()
            return self._decomposer


def _joined(runs: Sequence[TokenParts]) -> TokenParts:
    """The parts of all of a text's tokens from the parts of its runs."""
    return TokenParts(
        np.concatenate([run.parts for run in runs]),
        runs[0].whole,
        np.concatenate([run.own_shares for run in runs], axis=1),
    )
