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

from benchmarks.peers.pooled import Pooled
from benchmarks.peers.worker import Peer, Plan, Task, layouts, pad, pad_rows, serve

INT8 = "int8"  # quantized by NNCF; what stays in floating point runs in either of the others
HINTS = {"f32": ("f32",), "bf16": ("bf16",), INT8: ("f32", "bf16")}


def convert(weights: str) -> Any:
    """The model with dynamic batch and length."""
    encoder = AutoModel.from_pretrained(weights, local_files_only=True)
    encoder.config.use_cache = False  # OpenVINO does not convert the lists of keys and values that decoders keep
    example = torch.ones(2, 8, dtype=torch.long)
    model = ov.convert_model(
        Pooled(encoder).eval(), example_input={"input_ids": example, "attention_mask": example.clone()}
    )
    model.reshape({name: [-1, -1] for name in ("input_ids", "attention_mask")})
    return model


def quantize(model: Any, calibration: Sequence[Sequence[int]]) -> Any:
    """NNCF's static int8 for transformers: ranges from the calibration texts, one at a time."""
    import nncf  # type: ignore[import-not-found]  # noqa: PLC0415 - takes seconds, and only int8 needs it

    rows = [{"input_ids": ids, "attention_mask": mask} for ids, mask in (pad_rows([row]) for row in calibration)]
    return nncf.quantize(model, nncf.Dataset(rows), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(rows))


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
    core, exact = ov.Core(), convert(task.weights)
    models = {name: quantize(exact, task.calibration) if name == INT8 else exact for name in task.precisions}
    ways: dict[str, Callable[[], Sequence[float]]] = {}
    for precision, hint in ((name, hint) for name in models for hint in HINTS[name]):
        for streams, threads in layouts(task.cores):
            options = {
                "INFERENCE_PRECISION_HINT": hint,
                "NUM_STREAMS": str(streams),
                "INFERENCE_NUM_THREADS": str(task.cores),
            }
            queue = ov.AsyncInferQueue(core.compile_model(models[precision], "CPU", options), streams)
            for name, plan in task.plans.items():
                kind = precision if precision == hint else f"{precision} and {hint}"
                ways[f"{kind}, {name}, {streams}x{threads}"] = partial(run_plan, queue, _batches(task, plan))
    first = core.compile_model(models[task.precisions[0]], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return Peer(ways, lambda indices: np.concatenate([first(_batch(task, [index]))[0] for index in indices]))


def _batches(task: Task, plan: Plan) -> list[dict[str, NDArray[np.int64]]]:
    return [_batch(task, indices) for indices in plan]


def _batch(task: Task, indices: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    input_ids, mask = pad(task, indices)
    return {"input_ids": input_ids, "attention_mask": mask}


if __name__ == "__main__":
    serve(make)
