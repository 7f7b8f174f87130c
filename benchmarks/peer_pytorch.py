"""This project's own encoder in PyTorch (sdpa attention), measured as the peers are: in a process of its own.

Started by `benchmarks.stages`. It is the network that the artifact was exported from.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peer_worker import Peer, Task, pad, serve
from benchmarks.weights import load_encoder
from model.encoder import Encoder

Inputs = tuple[Tensor, Tensor]  # input_ids [B, S], lengths [B]


def run_batches(encoder: Encoder, batches: Sequence[Inputs]) -> list[float]:
    """Runs every batch once; returns the seconds of each."""
    latencies: list[float] = []
    with torch.inference_mode():
        for input_ids, lengths in batches:
            began = time.perf_counter()
            encoder(input_ids, lengths)
            latencies.append(time.perf_counter() - began)
    return latencies


def make(task: Task) -> Peer:
    """The encoder on every plan."""
    torch.set_num_threads(task.cores)
    encoder = load_encoder(Path(task.weights)).use("sdpa")
    ways: dict[str, Callable[[], Sequence[float]]] = {
        f"{name}, 1x{task.cores}": partial(run_batches, encoder, [_inputs(task, indices) for indices in plan])
        for name, plan in task.plans.items()
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
