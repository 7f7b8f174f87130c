"""What the batcher takes and gives: texts, the request that waits for them, and how texts become one batch and back."""

import asyncio
import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from service.batching.queue import QueuedRequest
from service.inference.backend import Batch, BatchOutput, Cancellation, Float32Array, Int64Array


@dataclass(slots=True)  # as JobResult not frozen, which takes a microsecond more a text
class Job:
    """One text.

    Attributes:
        input_ids: [n], n at least 1, special tokens included.
        attention_layers: layers whose attention weights are wanted, ascending.
        wants_tokens: whether `last_hidden_state` is wanted.
        wants_norms: whether the value norms of these attention layers are wanted.
        head_gates: [sum of all layers' heads], or None; one array for all texts of a request.
        token_type_ids: [n], or None for all zeros.
        seen: how many of its tokens others see; None for all.
    """

    input_ids: Int64Array
    attention_layers: tuple[int, ...] = ()
    wants_tokens: bool = False
    wants_norms: bool = False
    head_gates: Float32Array | None = None
    token_type_ids: Int64Array | None = None
    seen: int | None = None


@dataclass(slots=True)
class JobResult:
    """What was computed for one text, never a padded row or column. The arrays are C-contiguous.

    Attributes:
        output: the task's, as `BatchOutput` describes it.
        last_hidden_state: [n, D], or None where not wanted.
        attentions: by layer, probabilities [H_l, n, n]; the wanted layers only.
        queue_seconds: from submission to the start of its batch.
        inference_seconds: how long its batch ran.
        value_norms: by layer, [H_l, n]; the wanted layers only.
    """

    output: Float32Array
    last_hidden_state: Float32Array | None
    attentions: Mapping[int, Float32Array]
    queue_seconds: float
    inference_seconds: float
    value_norms: Mapping[int, Float32Array] = field(default_factory=dict)


def collate(jobs: Sequence[Job], cancellation: Cancellation) -> Batch:
    """Texts as one batch [B, S], padded on the right to the longest. All want the same attention layers.

    Texts with gates and texts without share a batch: each row has gates of its own, and a gate of 1 changes no bit. So
    a text sent with many masks, the usual way of asking which heads matter, runs in few batches.
    """
    lengths = np.array([len(job.input_ids) for job in jobs], dtype=np.int64)
    types = None
    if any(job.token_type_ids is not None for job in jobs):
        types = _padded([() if job.token_type_ids is None else job.token_type_ids for job in jobs], lengths.max())
    return Batch(
        _padded([job.input_ids for job in jobs], lengths.max()),
        lengths,
        jobs[0].attention_layers,
        any(job.wants_tokens for job in jobs),
        any(job.wants_norms for job in jobs),
        _gates(jobs),
        cancellation,
        types,
        _seen(jobs),
    )


def _padded(rows: Sequence[Int64Array | tuple[()]], length: int) -> Int64Array:
    """[B, S], 0 behind each row."""
    padded = np.zeros((len(rows), length), dtype=np.int64)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded


def _seen(jobs: Sequence[Job]) -> Int64Array | None:
    """[B], tokens that others see; None if all are seen."""
    if all(job.seen is None for job in jobs):
        return None
    return np.array([len(job.input_ids) if job.seen is None else job.seen for job in jobs], dtype=np.int64)


def _gates(jobs: Sequence[Job]) -> Float32Array | None:
    """[B, sum of all layers' heads], 1 for texts without gates; None where no text has any."""
    given = [job.head_gates for job in jobs if job.head_gates is not None]
    if not given:
        return None
    open_gates = np.ones_like(given[0])
    return np.stack([open_gates if job.head_gates is None else job.head_gates for job in jobs])


def separate(
    jobs: Sequence[Job], output: BatchOutput, *, queue_seconds: Sequence[float], inference_seconds: float
) -> list[JobResult]:
    """Each text's own part of a batch's output. Rows are views where nothing was padded, copies where something was.

    Raises:
        IndexError, KeyError, TypeError: the backend returned less than the batch asked for.
    """
    return [
        JobResult(
            output.output[row],
            output.last_hidden_state[row, :size] if job.wants_tokens else None,  # type: ignore[index]  # it is there
            {layer: _of_text(output.attentions[layer], row, size, size) for layer in job.attention_layers},
            queue_seconds[row],
            inference_seconds,
            {
                layer: _of_text(output.value_norms[layer], row, size)
                for layer in job.attention_layers
                if job.wants_norms
            },
        )
        for row, (job, size) in enumerate((job, len(job.input_ids)) for job in jobs)
    ]


def _of_text(arrays: Float32Array, row: int, *sizes: int) -> Float32Array:
    """One text's part [H, sizes] of a layer's padded arrays [B, H, ...]."""
    if not arrays.shape[1]:  # a layer without heads has no rows in a graph's output either
        return np.zeros((0, *sizes), dtype=np.float32)
    place: tuple[slice, ...] = (slice(None), *map(slice, sizes))
    return np.ascontiguousarray(arrays[row][place])


class PendingRequest(QueuedRequest):
    """A request that waits on its event loop while threads work on its parts. All but `future` is guarded by a lock.

    Attributes:
        parts: texts, or other work; results have their order.
        deadline: of `time.monotonic`; nothing is done for it after that.
        is_settled: its outcome is known, or no client waits for it: nothing more is done for it then.
    """

    __slots__ = ("_error", "_left", "deadline", "future", "is_settled", "loop", "parts", "results")

    def __init__(self, parts: Sequence[Any], deadline: float = math.inf) -> None:
        super().__init__()
        self.parts = parts
        self.deadline = deadline
        self.results: list[Any] = [None] * len(parts)
        self.is_settled = False
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self._left = len(parts)
        self._error: Exception | None = None

    def is_wanted(self, now: float) -> bool:
        """Whether anybody still waits for it."""
        return not self.is_settled and now < self.deadline

    def complete(self, index: int, result: Any) -> bool:
        """Takes in one part's result; returns whether it was the last one that a client waits for."""
        if self.is_settled:
            return False
        self.results[index] = result
        self._left -= 1
        return not self._left

    def settle(self, error: Exception | None = None) -> bool:
        """Ends it with its results or a failure, or as one that no client waits for; whether it had not ended yet."""
        if self.is_settled:
            return False
        self._error = error
        self.is_settled = True
        return True

    def resolve(self) -> None:
        """Tells whoever waits that the outcome is known. Called on the request's event loop."""
        if not self.future.done():
            self.future.set_result(None)

    def outcome(self) -> Any:
        """Its results, or its failure raised."""
        if self._error is not None:
            raise self._error
        return self.results

    def forget(self) -> None:
        """Drops parts and outcome: a thread may hold the request, and an error what it passed through, long after."""
        self.parts = ()
        self._error = None
        self.results = []


def deliver(settled: Iterable[PendingRequest]) -> None:
    """Resolves settled requests from another thread, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[PendingRequest]] = {}
    for request in settled:
        by_loop.setdefault(request.loop, []).append(request)
    for loop, requests in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks with it
            loop.call_soon_threadsafe(_resolve, requests)


def _resolve(requests: list[PendingRequest]) -> None:
    for request in requests:
        request.resolve()
