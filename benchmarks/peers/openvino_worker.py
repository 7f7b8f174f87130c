"""OpenVINO as a peer: the checkpoint converted from `transformers`, mean pooling in the graph, no HTTP.

Runs in the environment `environments.OPENVINO`. Streams are what worker threads are to this project: each stream runs
one batch at a time on its share of the cores.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import openvino as ov  # type: ignore[import-not-found]  # only in its own environment
import torch
from numpy.typing import NDArray
from transformers import AutoModel

from benchmarks.peers.worker import Peer, Plan, Task, layouts, pad, serve

PRECISIONS = ("f32", "bf16")


class Pooled(torch.nn.Module):
    """The encoder and the mean of its token vectors."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """[B, S] and [B, S] -> [B, D]."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled: torch.Tensor = (hidden * kept).sum(1) / kept.sum(1)
        return pooled


def convert(weights: str) -> Any:
    """The model with dynamic batch and length."""
    encoder = AutoModel.from_pretrained(weights, local_files_only=True)
    example = torch.ones(2, 8, dtype=torch.long)
    model = ov.convert_model(
        Pooled(encoder).eval(), example_input={"input_ids": example, "attention_mask": example.clone()}
    )
    model.reshape({name: [-1, -1] for name in ("input_ids", "attention_mask")})
    return model


def run_plan(queue: Any, batches: Sequence[dict[str, NDArray[np.int64]]]) -> list[float]:
    """Runs every batch once, as many at a time as the queue has streams; returns the seconds of each."""
    latencies: list[float] = []
    queue.set_callback(lambda _, began: latencies.append(time.perf_counter() - began))
    for batch in batches:
        queue.get_idle_request_id()  # waits, so that the time starts when the batch does
        queue.start_async(batch, time.perf_counter(), share_inputs=True)
    queue.wait_all()
    return latencies


def make(task: Task) -> Peer:
    """Every precision, as one stream on all cores and as a stream a core, on every plan."""
    model, core = convert(task.weights), ov.Core()
    ways: dict[str, Callable[[], Sequence[float]]] = {}
    for precision in PRECISIONS:
        for streams, threads in layouts(task.cores):
            options = {
                "INFERENCE_PRECISION_HINT": precision,
                "NUM_STREAMS": str(streams),
                "INFERENCE_NUM_THREADS": str(task.cores),
            }
            queue = ov.AsyncInferQueue(core.compile_model(model, "CPU", options), streams)
            for name, plan in task.plans.items():
                way = f"{precision}, {name}, {streams}x{threads}"
                ways[way] = partial(run_plan, queue, _batches(task, plan))
    exact = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return Peer(ways, lambda indices: np.asarray(exact(_batch(task, indices))[0]))


def _batches(task: Task, plan: Plan) -> list[dict[str, NDArray[np.int64]]]:
    return [_batch(task, indices) for indices in plan]


def _batch(task: Task, indices: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    input_ids, mask = pad(task, indices)
    return {"input_ids": input_ids, "attention_mask": mask}


if __name__ == "__main__":
    serve(make)
