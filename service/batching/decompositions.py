"""Explaining on threads of its own: from texts to what each of their tokens gives to the model's output.

A text of n tokens costs about n times as much to explain as to encode. So this work is cut into runs of some tens of
milliseconds, which wait in a queue next to the batcher's, for threads that give way to the batcher's. It knows no HTTP.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from service.batching.admission import CLOSED
from service.batching.work_queue import Part, WorkQueue
from service.errors import InferenceFailed, NotReady
from service.inference.backend import Cancellation, Decomposer, Int64Array, TokenParts, WholeText

logger = logging.getLogger(__name__)

NICE = 15  # the workers' is 5: with both busy, Linux gives these threads a tenth of a core's time
RUN_ROWS = 2048  # token vectors in a run, sources times tokens: its memory, and how soon another request has a turn
FIXED_ROWS = 20  # token vectors that take as long as what every run does besides (MiniLM-L6, Zen 3)
FAILED = "explaining failed; the log has the details"


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
        load: called on a thread.
        max_delay: seconds a request may have to wait, beside 16 times its own runs.
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
        on_run: Callable[[float], object] = lambda _: None,
    ) -> None:
        self._load = load
        self._on_run = on_run
        self.waiting_rows = 0
        self._decomposer: Decomposer | None = None
        self._loading = threading.Lock()
        self._live: set[Cancellation] = set()  # of runs that wait or go on
        self._queue = WorkQueue("explain", threads, max_delay=max_delay, nice=NICE, before_part=self._loaded)

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
        submitted, starts = time.monotonic(), list[float]()
        rows = sum(len(text.input_ids) ** 2 for text in texts)  # token vectors that are computed a layer
        runs = [source_runs(text) for text in texts]
        cancellations = {Cancellation() for of_text in runs for _ in of_text}
        unused = iter(cancellations)
        parts = [
            Part(
                FIXED_ROWS + len(sources) * len(text.input_ids),
                partial(self._decompose, text, sources, next(unused), starts),
            )
            for text, of_text in zip(texts, runs, strict=True)
            for sources in of_text
        ]

        def join(found: list[TokenParts]) -> list[TokenParts]:
            rest = iter(found)
            return [_joined(list(islice(rest, len(of_text)))) for of_text in runs]

        self.waiting_rows += rows
        self._live |= cancellations
        try:
            found = await self._queue.run(parts, join, deadline)
        finally:
            self.waiting_rows -= rows
            self._live -= cancellations
            for cancellation in cancellations:
                cancellation.cancel()
        began = min(starts)
        return Decomposed(found, began - submitted, time.monotonic() - began)

    def close(self) -> None:
        """Takes nothing more, cancels the runs, and waits for its threads."""
        self._queue.close()
        for cancellation in list(self._live):
            cancellation.cancel()
        self._queue.pool.shutdown()
        self._decomposer = None

    def _loaded(self) -> Decomposer:
        with self._loading:
            if self._decomposer is None:
                try:
                    self._decomposer = self._load()
                except Exception as error:
                    logger.exception("loading what explains failed")
                    raise InferenceFailed(FAILED) from error
            return self._decomposer

    def _decompose(
        self, text: WholeText, sources: Int64Array, cancellation: Cancellation, starts: list[float]
    ) -> TokenParts:
        """One run, on one of the threads."""
        spent = time.thread_time()
        starts.append(time.monotonic())
        try:
            return self._loaded().run(text, sources, cancellation)
        except Exception as error:
            if cancellation.is_cancelled:
                raise NotReady(CLOSED) from error  # no client waits for it, unless the queue was closed
            logger.exception("explaining a text of %d tokens failed", len(text.input_ids))
            raise InferenceFailed(FAILED) from error
        finally:
            self._on_run(time.thread_time() - spent)


def _joined(runs: Sequence[TokenParts]) -> TokenParts:
    """The parts of all of a text's tokens from the parts of its runs."""
    return TokenParts(
        np.concatenate([run.parts for run in runs]),
        runs[0].whole,
        np.concatenate([run.own_shares for run in runs], axis=1),
    )
