"""ONNX Runtime's own dynamic int8 as a peer: `transformers` exported, optimized and quantized by its tools, no HTTP.

Weights are int8 with one scale a tensor, as sentence-transformers' `export_dynamic_quantized_onnx_model` has it; ONNX
Runtime's optimizer for transformers runs before.
Runs in this project's environment.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model
from transformers import AutoModel

from benchmarks.peers.pooled import Pooled
from benchmarks.peers.worker import Peer, Task, layouts, pad, pull, serve

Inputs = dict[str, NDArray[np.int64]]


def quantize(weights: str, folder: Path) -> Path:
    """The quantized graph of a BERT checkpoint, with dynamic batch and length."""
    encoder = AutoModel.from_pretrained(weights, local_files_only=True)
    plain, optimized, quantized = (folder / f"{name}.onnx" for name in ("plain", "optimized", "quantized"))
    example = torch.ones(2, 8, dtype=torch.long)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    shapes = {"input_ids": axes, "attention_mask": axes}
    inputs = (example, example.clone())
    torch.onnx.export(Pooled(encoder).eval(), inputs, plain, dynamo=True, dynamic_shapes=shapes, external_data=False)
    sizes = encoder.config.num_attention_heads, encoder.config.hidden_size
    fused = optimize_model(str(plain), "bert", *sizes, optimization_options=FusionOptions("bert"))
    fused.save_model_to_file(str(optimized))
    quantize_dynamic(optimized, quantized, weight_type=QuantType.QInt8)
    return quantized


def open_session(graph: Path, threads: int) -> ort.InferenceSession:
    """A session with this many threads of its own."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def run_plan(session: ort.InferenceSession, batches: Sequence[Inputs], workers: int) -> list[float]:
    """Runs every batch once; returns the seconds of each."""
    return pull(partial(session.run, None), batches, workers, lambda: None)


def make(task: Task) -> Peer:
    """One session on all cores, and one that a worker a core shares, on every plan."""
    ways: dict[str, Callable[[], Sequence[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        graph = quantize(task.weights, Path(folder))
        sessions = {layout: open_session(graph, layout[1]) for layout in layouts(task.cores)}
    for (workers, threads), session in sessions.items():
        for name, plan in task.plans.items():
            batches = [_inputs(task, indices) for indices in plan]
            ways[f"int8, {name}, {workers}x{threads}"] = partial(run_plan, session, batches, workers)
    session = next(iter(sessions.values()))
    return Peer(ways, lambda indices: np.concatenate([session.run(None, _inputs(task, [i]))[0] for i in indices]))


def _inputs(task: Task, indices: Sequence[int]) -> Inputs:
    input_ids, mask = pad(task, indices)
    return {"input_ids": input_ids, "attention_mask": mask}


if __name__ == "__main__":
    serve(make)
