"""Which provider runs which nodes of an artifact's graph, and which kernel runs its attention.

ONNX Runtime prints its kernels to standard output where `ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO` was set when a session
was made, so this asks a process of its own.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.command import CannotMeasure, last_line
from model.artifact import Artifact
from service.inference.backend import Batch
from service.inference.onnx_backend import OnnxBackend

SHAPE = (8, 128)  # texts x tokens of the run whose kernels are printed
MOST = 8  # operators named
KERNEL = re.compile(r"SdpaKernel=(\w+)")  # AttentionKernelDebugInfo::Print


class InspectionFailed(CannotMeasure):
    """The process that was to run the graph ended with an error; the message is its last line."""


def inspect_nodes(directory: Path, provider: str) -> list[dict[str, Any]]:
    """A row for each provider that runs nodes: how many, of which operators; kernels as far as they are printed.

    Raises:
        InspectionFailed: the artifact does not run there.
    """
    command = [sys.executable, "-m", "benchmarks.gpu.nodes", str(directory), provider]
    environment = {**os.environ, "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)  # noqa: S603 - our own
    if done.returncode:
        raise InspectionFailed(last_line(done.stderr, "no word"))
    return describe(json.loads(done.stdout.splitlines()[-1]), done.stdout)


def describe(operators: dict[str, list[str]], printed: str) -> list[dict[str, Any]]:
    """Rows from the operators that each provider runs, and from what was printed while they ran."""
    kernels = Counter(KERNEL.findall(printed))
    return [
        {
            "provider": provider.removesuffix("ExecutionProvider"),
            "nodes": len(names),
            "operators": _counted(Counter(names)),
            "attention_kernels": _counted(kernels) if "Attention" in names else "",
        }
        for provider, names in operators.items()
    ]


def _counted(counts: Counter[str]) -> str:
    return " ".join(f"{name}:{count}" for name, count in counts.most_common(MOST))


def _main(directory: Path, provider: str) -> None:
    artifact = Artifact.open(directory)
    backend = OnnxBackend(artifact, provider=provider)
    texts, length = SHAPE[0], min(SHAPE[1], artifact.manifest.max_sequence_length)
    backend.run(Batch(np.zeros((texts, length), np.int64), np.full(texts, length, np.int64), ()))
    print(json.dumps(backend.operators()))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
