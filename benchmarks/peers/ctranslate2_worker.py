"""CTranslate2 as a peer: the checkpoint converted by its own converter, mean pooling in NumPy, no HTTP.

Runs in the environment `environments.CTRANSLATE2`. Each of its workers has a thread here that gives it batches.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import ctranslate2  # type: ignore[import-not-found]  # only in its own environment
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.worker import Peer, Task, layouts, pull, serve

Rows = list[list[int]]


def convert(weights: str, precision: str, folder: Path) -> str:
    """The converted model's folder; precision is `float32` or `int8`."""
    quantization = None if precision == "float32" else precision
    converted: str = ctranslate2.converters.TransformersConverter(weights).convert(
        str(folder / precision), quantization=quantization
    )
    return converted


def embed(encoder: ctranslate2.Encoder, rows: Rows) -> NDArray[np.float32]:
    """Mean of each text's token vectors, `[B, D]`."""
    hidden = np.array(encoder.forward_batch(rows).last_hidden_state)
    lengths = np.array([len(row) for row in rows])
    is_token = np.arange(hidden.shape[1]) < lengths[:, None]
    pooled: NDArray[np.float32] = (hidden * is_token[:, :, None]).sum(axis=1) / lengths[:, None]
    return pooled


def run_plan(encoder: ctranslate2.Encoder, batches: Sequence[Rows], workers: int) -> list[float]:
    """Runs every batch once; returns the seconds of each."""
    return pull(partial(embed, encoder), batches, workers, lambda: None)


def make(task: Task) -> Peer:
    """Every precision, as one worker on all cores and as a worker a core, on every plan."""
    ways: dict[str, Callable[[], Sequence[float]]] = {}
    encoders = []
    with tempfile.TemporaryDirectory() as folder:
        for precision in task.precisions:
            path = convert(task.weights, precision, Path(folder))
            for workers, threads in layouts(task.cores):
                encoder = ctranslate2.Encoder(
                    path, device="cpu", compute_type=precision, inter_threads=workers, intra_threads=threads
                )
                encoders.append(encoder)
                for name, plan in task.plans.items():
                    batches = [_rows(task, indices) for indices in plan]
                    ways[f"{precision}, {name}, {workers}x{threads}"] = partial(run_plan, encoder, batches, workers)
    return Peer(ways, lambda indices: embed(encoders[0], _rows(task, indices)))


def _rows(task: Task, indices: Sequence[int]) -> Rows:
    return [list(task.rows[index]) for index in indices]


if __name__ == "__main__":
    serve(make)
