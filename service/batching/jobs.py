"""What the batcher takes and gives, and how texts become one batch and results again.

It knows neither threads nor requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.inference.backend import Batch, BatchOutput, Cancellation, Float32Array, Int64Array


@dataclass(frozen=True, slots=True)
class Job:
    """One text.

    Attributes:
        input_ids: [n], n at least 1, special tokens included.
        attention_layers: layers whose attention weights are wanted, ascending.
        wants_tokens: whether `last_hidden_state` is wanted.
        wants_norms: whether the value norms of these attention layers are wanted.
        head_gates: [sum of all layers' heads], or None; one array for all texts of a request.
        token_type_ids: [n], or None for all zeros.
    """

    input_ids: Int64Array
    attention_layers: tuple[int, ...] = ()
    wants_tokens: bool = False
    wants_norms: bool = False
    head_gates: Float32Array | None = None
    token_type_ids: Int64Array | None = None


@dataclass(frozen=True, slots=True)
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


def collate(jobs: Sequence[Job], cancellation: Cancellation | None = None) -> Batch:
    """Texts as one batch [B, S], padded on the right to the longest. All want the same attention layers.

    Texts with gates and texts without share a batch: each row has gates of its own, and a gate of 1 changes no bit. So
    a text sent with many masks, the usual way of asking which heads matter, runs in few batches.
    """
    layers = jobs[0].attention_layers
    tokens, norms = any(job.wants_tokens for job in jobs), any(job.wants_norms for job in jobs)
    wanted = (layers, tokens, norms, _gates(jobs), cancellation)
    if len(jobs) == 1:
        row = jobs[0].input_ids
        return Batch(row[np.newaxis], np.array([len(row)], dtype=np.int64), *wanted, _types(jobs, len(row)))
    lengths = np.array([len(job.input_ids) for job in jobs], dtype=np.int64)
    input_ids = np.zeros((len(jobs), int(lengths.max())), dtype=np.int64)
    for row, job in zip(input_ids, jobs, strict=True):
        row[: len(job.input_ids)] = job.input_ids
    return Batch(input_ids, lengths, *wanted, _types(jobs, input_ids.shape[1]))


def _types(jobs: Sequence[Job], length: int) -> Int64Array | None:
    """[B, S], 0 for texts that come alone; None where no text has types."""
    if all(job.token_type_ids is None for job in jobs):
        return None
    types = np.zeros((len(jobs), length), dtype=np.int64)
    for row, job in zip(types, jobs, strict=True):
        if job.token_type_ids is not None:
            row[: len(job.token_type_ids)] = job.token_type_ids
    return types


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
            _tokens(output, row, len(job.input_ids)) if job.wants_tokens else None,
            {layer: _attention(output, layer, row, len(job.input_ids)) for layer in job.attention_layers},
            queue_seconds[row],
            inference_seconds,
            {
                layer: _norms(output, layer, row, len(job.input_ids))
                for layer in job.attention_layers
                if job.wants_norms
            },
        )
        for row, job in enumerate(jobs)
    ]


def _tokens(output: BatchOutput, row: int, length: int) -> Float32Array:
    if output.last_hidden_state is None:
        raise TypeError("the batch wanted last_hidden_state, the backend returned None")
    return output.last_hidden_state[row, :length]


def _attention(output: BatchOutput, layer: int, row: int, length: int) -> Float32Array:
    weights = output.attentions[layer]
    if not weights.shape[1]:  # a graph gives a layer without heads no rows either
        return np.zeros((0, length, length), dtype=np.float32)
    return np.ascontiguousarray(weights[row, :, :length, :length])


def _norms(output: BatchOutput, layer: int, row: int, length: int) -> Float32Array:
    norms = output.value_norms[layer]
    if not norms.shape[1]:
        return np.zeros((0, length), dtype=np.float32)
    return np.ascontiguousarray(norms[row, :, :length])
