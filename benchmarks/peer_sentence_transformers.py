"""sentence-transformers as a peer: fp32 in PyTorch, in process, no HTTP.

Runs in the environment `peer_environments.SENTENCE_TRANSFORMERS`, started by `benchmarks.peers`. `encode` is what its
users call, with its tokenizer; `forward` is the network alone on ready token ids, to compare engines.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from benchmarks.peer_worker import Peer, Plan, Task, pad, serve, timed

ENCODE_BATCH = 32  # its default


def forward(model: SentenceTransformer, batches: Sequence[dict[str, torch.Tensor]]) -> list[float]:
    """Runs every batch once through all of the pipeline's modules; returns the seconds of each."""
    latencies: list[float] = []
    with torch.inference_mode():
        for batch in batches:
            began = time.perf_counter()
            model(dict(batch))
            latencies.append(time.perf_counter() - began)
    return latencies


def encode(model: SentenceTransformer, texts: Sequence[str]) -> list[float]:
    """One call with all texts: it sorts them by length and batches them itself."""
    return [timed(partial(model.encode, list(texts), batch_size=ENCODE_BATCH, show_progress_bar=False))]


def make(task: Task) -> Peer:
    """`encode`, and `forward` on every plan."""
    torch.set_num_threads(task.cores)
    model = SentenceTransformer(task.weights, device="cpu", local_files_only=True).eval()
    ways: dict[str, Callable[[], Sequence[float]]] = {"encode()": partial(encode, model, task.texts)}
    for name, plan in task.plans.items():
        ways[f"forward, {name}, 1x{task.cores}"] = partial(forward, model, _batches(task, plan))
    return Peer(ways, partial(_embed, model, task))


def _embed(model: SentenceTransformer, task: Task, indices: Sequence[int]) -> NDArray[np.float32]:
    return np.asarray(model.encode([task.texts[index] for index in indices], show_progress_bar=False))


def _batches(task: Task, plan: Plan) -> list[dict[str, torch.Tensor]]:
    padded = (pad(task, indices) for indices in plan)
    return [
        {"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(mask)}
        for input_ids, mask in padded
    ]


if __name__ == "__main__":
    serve(make)
