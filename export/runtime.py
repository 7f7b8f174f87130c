"""ONNX Runtime for the exporter: the session that verification runs. Telemetry is off before the import."""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # since 1.29 released builds report by default; the API call comes too late

import time
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from model.artifact import HEAD_GATES, NORM_LAYERS

SEVERITY_ERROR = 3
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


class Session:
    """One graph, computed as the service computes it, with named inputs and outputs."""

    def __init__(self, path: Path, *, optimized: Path | None = None, threads: int = 0) -> None:
        """Loads a graph, and writes it `optimized` as ONNX Runtime runs it; 0 threads are ONNX Runtime's own choice."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = SEVERITY_ERROR
        options.intra_op_num_threads = threads
        options.enable_mem_pattern = False
        if optimized is not None:
            options.optimized_model_filepath = str(optimized)
        # CUDA if it is there: only it has kernels for bfloat16. Named, so that nothing falls back in silence.
        # TensorFloat-32 has 10 bits, too few for the parity of fp32; the service leaves it off as well.
        known: dict[str, dict[str, str]] = {CUDA: {"use_tf32": "0"}, CPU: {}}
        available = self.available_providers()
        providers = [(name, options) for name, options in known.items() if name in available]
        self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        self.input_names = tuple(entry.name for entry in self._session.get_inputs())
        self.output_names = tuple(entry.name for entry in self._session.get_outputs())
        sizes = {entry.name: entry.shape[-1] for entry in self._session.get_inputs()}
        self._left_out: dict[str, NDArray[np.generic]] = {}  # inputs that a run may leave out: no norms, no gates
        if NORM_LAYERS in sizes:
            self._left_out[NORM_LAYERS] = np.zeros(sizes[NORM_LAYERS], np.bool_)
        if HEAD_GATES in sizes:
            self._left_out[HEAD_GATES] = np.zeros((0, sizes[HEAD_GATES]), np.float32)

    @staticmethod
    def available_providers() -> list[str]:
        """What this build of ONNX Runtime can run on."""
        providers: list[str] = onnxruntime.get_available_providers()
        return providers

    def run(self, inputs: dict[str, NDArray[np.generic]]) -> dict[str, NDArray[np.float32]]:
        """Every output by name; without norms and gates where `inputs` do not name them."""
        return dict(zip(self.output_names, self._session.run(None, {**self._left_out, **inputs}), strict=True))

    def cpu_seconds(self, inputs: dict[str, NDArray[np.generic]]) -> float:
        """What a run takes, of all threads."""
        begun = time.process_time()
        self.run(inputs)
        return time.process_time() - begun
