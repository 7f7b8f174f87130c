"""Infinity's server on a checkpoint, with each of its engines that a CPU has.

Two run PyTorch, with BetterTransformer (its default) or without. The third, `optimum`, runs ONNX Runtime on a graph
that has to be there: optimum's own exporter makes it. Infinity then optimizes the graph as it starts. Where a folder
has an int8 graph too, Infinity takes that one; none is made here, as its vectors are too far from the others'.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from benchmarks.lib.server import Server, free_port, started
from benchmarks.peers.peers import QUIET, TORCH, Environment, PeerFailed, Peers, run_command

# BetterTransformer is Infinity's faster engine with PyTorch on a CPU; optimum has it below 2.0 only, and there asks for
# transformers below 4.49. typer 0.12 of that time does not work with click 8.2.
INFINITY = Environment(
    "infinity",
    (
        "infinity-emb[torch,optimum,server]==0.0.78",
        TORCH,
        "transformers==4.48.3",
        "optimum==1.27.0",
        "onnxruntime==1.23.2",
        "click==8.1.8",
    ),
    ("infinity-emb", "torch", "transformers", "optimum", "onnxruntime", "sentence-transformers"),
)
OPTIMUM = "optimum"
INFINITY_ENGINES: Mapping[str, str] = MappingProxyType(
    {
        "bettertransformer": "--engine torch --bettertransformer",
        "no-bettertransformer": "--engine torch --no-bettertransformer",
        OPTIMUM: "--engine optimum",
    }
)
OPTIMIZED = "model_optimized.onnx"  # what Infinity writes beside the graph; without it, it runs the graph as it is
ExportTask = Literal["feature-extraction", "text-classification"]  # optimum's words for an embedder and a reranker


def start_infinity(peers: Peers, weights: Path, engine: str, task: ExportTask = "feature-extraction") -> Server:
    """Its server on a checkpoint with one of `INFINITY_ENGINES`, until the run ends.

    Raises:
        NotInstallable, ServerFailed: it cannot be had or did not start.
        PeerFailed: the graph could not be exported, or Infinity did not optimize it.
    """
    python, port = peers.prepare(INFINITY), free_port()
    folder = weights
    if engine == OPTIMUM:
        folder = Path(peers.stack.enter_context(tempfile.TemporaryDirectory()))
        export_graph(python, weights, task, folder)
    flags = f"{INFINITY_ENGINES[engine]} --device cpu --dtype float32 --host 127.0.0.1 --port {port} --log-level error"
    flags += " --no-model-warmup"  # it measures itself on long texts for a minute; every round here is warm anyway
    command = [str(python.with_name("infinity_emb")), "v2", *flags.split(), "--model-id", str(folder)]
    environment = {**QUIET, "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    server = peers.stack.enter_context(started(command, port, "/health", environment))
    if engine == OPTIMUM and not (folder / OPTIMIZED).is_file():
        raise PeerFailed("Infinity did not optimize the graph, and would run it as it was exported")
    return server


def export_graph(python: Path, weights: Path, task: ExportTask, folder: Path) -> None:
    """Writes the checkpoint as ONNX in float32, with its tokenizer."""
    options = f"--task {task} --library transformers --framework pt --device cpu"
    run_command(
        [str(python.with_name("optimum-cli")), "export", "onnx", "--model", str(weights), *options.split(), str(folder)]
    )
