"""Infinity's server on a checkpoint, with each of its engines that a CPU has.

Two run PyTorch, with BetterTransformer (its default) or without. The third, `optimum`, runs ONNX Runtime on a graph
that has to be there. optimum's exporter makes it, with ONNX Runtime's fusions: Infinity's own call for these fails with
this release of optimum, and it would run the plain graph. Where a folder has an int8 graph too, Infinity takes that
one; none is made here, as its vectors are too far from the others'.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from benchmarks.lib.server import Server, free_port, started
from benchmarks.peers.peers import QUIET, TORCH, Environment, Run, run_command

# BetterTransformer is Infinity's faster engine with PyTorch on a CPU; optimum has it below 2.0 only, and there asks for
# transformers below 4.49. typer 0.12 of that time does not work with click 8.2.
OF_THAT_TIME = "click==8.1.8"
INFINITY = Environment(
    "infinity",
    ("infinity-emb[torch,server]==0.0.78", TORCH, "transformers==4.48.3", "optimum==1.27.0", OF_THAT_TIME),
)
# Below 2.0 optimum's exporter does not work with this release of PyTorch. Infinity wants numpy below 2.
EXPORTER = ("optimum-onnx==0.1.0", "onnxruntime==1.23.2", "transformers==4.57.6")
INFINITY_ONNX = Environment("infinity-onnx", ("infinity-emb[server]==0.0.78", TORCH, *EXPORTER, OF_THAT_TIME))
OPTIMUM = "optimum"
INFINITY_ENGINES: Mapping[str, str] = {
    "bettertransformer": "--engine torch --bettertransformer",
    "no-bettertransformer": "--engine torch --no-bettertransformer",
    # It reads no pooling of a checkpoint with this engine, and would take the first token's vector.
    OPTIMUM: "--engine optimum --onnx-disable-optimize --pooling-method mean",
}
ExportTask = Literal["feature-extraction", "text-classification"]  # optimum's words for an embedder and a reranker


def start_infinity(run: Run, engine: str, task: ExportTask = "feature-extraction") -> Server:
    """Its server on the checkpoint with one of `INFINITY_ENGINES`, until the run ends.

    Raises:
        CannotMeasure: it cannot be had, the graph cannot be exported, or it did not start.
    """
    python, port = run.prepare(INFINITY_ONNX if engine == OPTIMUM else INFINITY).absolute(), free_port()
    folder = run.weights
    if engine == OPTIMUM:  # float32, with the tokenizer; `O2` fuses and changes no value
        folder = Path(run.stack.enter_context(tempfile.TemporaryDirectory()))
        options = f"--task {task} --library transformers --framework pt --device cpu --optimize O2".split()
        exporter = [str(python.with_name("optimum-cli")), "export", "onnx", "--model", str(run.weights)]
        run_command([*exporter, *options, str(folder)])
    flags = f"{INFINITY_ENGINES[engine]} --device cpu --dtype float32 --host 127.0.0.1 --port {port} --log-level error"
    flags += " --no-model-warmup"  # it measures itself on long texts for a minute; every round here is warm anyway
    command = [str(python.with_name("infinity_emb")), "v2", *flags.split(), "--model-id", "."]
    environment = {**QUIET, "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    # It finds the graph of a folder only by a relative path.
    return run.stack.enter_context(started(command, port, "/health", environment, folder))
