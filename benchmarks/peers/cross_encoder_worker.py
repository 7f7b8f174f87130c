"""sentence-transformers' `CrossEncoder` as a peer: fp32 in PyTorch, in process, no HTTP.

Runs in the environment `environments.SENTENCE_TRANSFORMERS`. One call of `predict` a query, as its users call it.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder

from benchmarks.peers.worker import Peer, Plan, Task, serve, timed


def predict(model: CrossEncoder, task: Task, indices: Sequence[int]) -> NDArray[np.float32]:
    """Scores of some pairs."""
    pairs = [(task.queries[index], task.texts[index]) for index in indices]
    return np.asarray(model.predict(pairs, show_progress_bar=False), dtype=np.float32)


def run_plan(model: CrossEncoder, task: Task, plan: Plan) -> list[float]:
    """One call a query; returns the seconds of each."""
    return [timed(partial(predict, model, task, indices)) for indices in plan]


def make(task: Task) -> Peer:
    """`predict` on every plan."""
    torch.set_num_threads(task.cores)
    model = CrossEncoder(task.weights, device="cpu", local_files_only=True)
    ways = {name: partial(run_plan, model, task, plan) for name, plan in task.plans.items()}
    return Peer(ways, lambda indices: predict(model, task, indices)[:, np.newaxis])


if __name__ == "__main__":
    serve(make)
