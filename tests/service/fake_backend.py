"""A backend for tests: answers with sums, and stops, fails or dies if it is told to."""

import threading
from collections.abc import Callable

import numpy as np

from service.batching.jobs import Job
from service.inference.backend import Batch, BatchOutput

PATIENCE = 20.0  # seconds after which a test is broken, not slow
ENDLESS = -1  # a token whose run goes on until it is cancelled


def job(*ids: int, layers: tuple[int, ...] = (), wants_tokens: bool = False) -> Job:
    """A text of these token ids."""
    return Job(np.array(ids, dtype=np.int64), layers, wants_tokens)


class FakeBackend:
    """Pools a text into [sum of its ids, its length].

    Attributes:
        runs: the texts of every run, in the order in which the runs began.
        on_token: called during a run for each text that holds the token; may raise, or block.
        cancelled: set once an endless run was cancelled.
        is_closed: whether `close` was called.
    """

    def __init__(self) -> None:
        self.runs: list[list[tuple[int, ...]]] = []
        self.on_token: dict[int, Callable[[], None]] = {}
        self.cancelled = threading.Event()
        self.is_closed = False
        self._changed = threading.Condition()
        self._permits: int | None = None

    def run(self, batch: Batch) -> BatchOutput:
        texts = [tuple(row[:length].tolist()) for row, length in zip(batch.input_ids, batch.lengths, strict=True)]
        with self._changed:
            self.runs.append(texts)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._permits is None or self._permits > 0, PATIENCE)
            if self._permits is not None:
                self._permits -= 1
        for text in texts:
            for token in text:
                self.on_token.get(token, lambda: None)()
        if any(ENDLESS in text for text in texts):
            batch.cancellation.on_cancel(self.cancelled.set)
            assert self.cancelled.wait(PATIENCE)
            raise RuntimeError("ended early")
        pooled = np.array([[sum(text), len(text)] for text in texts], dtype=np.float32)
        hidden = batch.input_ids[:, :, None].astype(np.float32) if batch.wants_tokens else None
        size = batch.input_ids.shape[1]
        shape = (len(texts), 2, size, size)
        return BatchOutput(pooled, hidden, {at: np.full(shape, at, np.float32) for at in batch.attention_layers})

    def close(self) -> None:
        assert not self.is_closed, "closed twice"
        self.is_closed = True

    def hold(self) -> None:
        """From now on runs wait for a permit before they compute."""
        with self._changed:
            self._permits = 0

    def permit(self, runs: int = 1) -> None:
        """Lets this many held runs go."""
        with self._changed:
            assert self._permits is not None
            self._permits += runs
            self._changed.notify_all()

    def release(self) -> None:
        """Lets every run go, those to come too."""
        with self._changed:
            self._permits = None
            self._changed.notify_all()

    def wait_for_runs(self, count: int) -> None:
        """Waits until this many runs have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.runs) >= count, PATIENCE), f"{len(self.runs)}/{count} runs"
