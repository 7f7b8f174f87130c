"""sentence-transformers as a peer: fp32 in PyTorch, in process, no HTTP.

Runs in the environment `environments.SENTENCE_TRANSFORMERS`. `encode` is what its users call, with its tokenizer;
`forward` is the network alone on ready token ids, to compare engines.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from benchmarks.peers.worker import Peer, Plan, Task, layouts, pad, pull, serve, timed

ENCODE_BATCH = 32  # its default
Features = dict[str, torch.Tensor]  # input_ids and attention_mask [B, S]


def forward(model: SentenceTransformer, batches: Sequence[Features], workers: int, threads: int) -> list[float]:
    """Runs every batch once through all of the pipeline's modules; returns the seconds of each."""

    def run(batch: Features) -> None:
        with torch.inference_mode():
            model(dict(batch))

    return pull(run, batches, workers, partial(torch.set_num_threads, threads))


def encode(model: SentenceTransformer, texts: Sequence[str]) -> list[float]:
    """One call with all texts: it sorts them by length and batches them itself. No prompt, as nobody has one here."""
    return [timed(partial(model.encode, list(texts), prompt="", batch_size=ENCODE_BATCH, show_progress_bar=False))]


def make(task: Task) -> Peer:
    """`encode`, and `forward` on every plan under every layout."""
    torch.set_num_threads(task.cores)
    model = SentenceTransformer(task.weights, device="cpu", local_files_only=True).eval()
    ways: dict[str, Callable[[], Sequence[float]]] = {"encode()": partial(encode, model, task.texts)}
    for name, plan in task.plans.items():
        for workers, threads in layouts(task.cores):
            run = partial(forward, model, _batches(task, plan), workers, threads)
            ways[f"forward, {name}, {workers}x{threads}"] = run
    return Peer(ways, partial(_embed, model, task))


def _embed(model: SentenceTransformer, task: Task, indices: Sequence[int]) -> NDArray[np.float32]:
    return np.asarray(model.encode([task.texts[index] for index in indices], prompt="", show_progress_bar=False))


def _batches(task: Task, plan: Plan) -> list[Features]:
    padded = (pad(task, indices) for indices in plan)
    return [
        {"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(mask)}
        for input_ids, mask in padded
    ]


if __name__ == "__main__":
    serve(make)
