"""This project's own encoder in PyTorch (sdpa attention), measured as the peers are: in a process of its own.

Started by `benchmarks.engine.stages`. It is the network that the artifact was exported from.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.lib.weights import load_encoder
from benchmarks.peers.worker import Peer, Task, layouts, pad, pull, serve
from model.encoder import Encoder

Inputs = tuple[Tensor, Tensor]  # input_ids [B, S], lengths [B]


def run_plan(encoder: Encoder, batches: Sequence[Inputs], workers: int, threads: int) -> list[float]:
    """Runs every batch once; returns the seconds of each."""

    def run(batch: Inputs) -> None:
        with torch.inference_mode():
            encoder(*batch)

    return pull(run, batches, workers, partial(torch.set_num_threads, threads))


def make(task: Task) -> Peer:
    """The encoder on every plan, under every layout."""
    encoder = load_encoder(Path(task.weights)).use("sdpa")
    ways: dict[str, Callable[[], Sequence[float]]] = {
        f"{name}, {workers}x{threads}": partial(
            run_plan, encoder, [_inputs(task, indices) for indices in plan], workers, threads
        )
        for name, plan in task.plans.items()
        for workers, threads in layouts(task.cores)
    }
    return Peer(ways, partial(_embed, encoder, task))


def _embed(encoder: Encoder, task: Task, indices: Sequence[int]) -> NDArray[np.float32]:
    with torch.inference_mode():
        return np.asarray(encoder(*_inputs(task, indices)).pooled)


def _inputs(task: Task, indices: Sequence[int]) -> Inputs:
    input_ids, mask = pad(task, indices)
    return torch.from_numpy(input_ids), torch.from_numpy(mask.sum(1))


if __name__ == "__main__":
    serve(make)
