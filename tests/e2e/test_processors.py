"""Processors that this machine is not, emulated: what ONNX Runtime's kernels compute there."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from export.checkpoint import Checkpoint
from export.exporter import export_artifact
from export.int8.layers import QuantizedLinear

ROOT = Path(__file__).parents[2]
QEMU = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
PROCESSORS = {"max": "fpu sse4_2 avx avx2 fma", "Nehalem": "fpu sse4_2"}  # QEMU's name: some of what it can do

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates x86 on x86"),
    pytest.mark.skipif(QEMU is None, reason="qemu-user-static is not installed"),
]

PRODUCT = """
import json, sys
import numpy as np, onnxruntime
from service.inference.onnx_backend import _session_options

x = np.full((int(sys.argv[2]), 64), 255, np.uint8)
found = {}
for fits in (True, False):
    options = _session_options(1, "cpu", fits_16_bits=fits)
    session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    found[fits] = session.run(None, {"x": x})[0].tolist()
print(json.dumps(found))
"""
LENGTHS = """
import json, sys
from pathlib import Path
import numpy as np
from model.artifact import Artifact
from service.inference.backend import Batch
from service.inference import onnx_backend

artifact = Artifact.open(Path(sys.argv[1]))
ids = np.random.default_rng(0).integers(0, 16, (1, 20))
differing = {}
for step in (onnx_backend.length_step(), 1):
    onnx_backend.length_step = lambda: step
    backend = onnx_backend.OnnxBackend(artifact)
    vectors = {
        length: [backend.run(Batch(ids[:, :width], np.array([length]))).output for width in range(length, 21)]
        for length in range(1, 17)
    }
    differing[step] = sum(not np.array_equal(one, all[0]) for all in vectors.values() for one in all)
print(json.dumps(differing))
"""


def emulate(directory: Path, processor: str, script: str, *arguments: str) -> Any:
    """What a script prints as JSON on another processor, which Linux describes to it as its own."""
    cpuinfo = directory / "proc" / "cpuinfo"
    cpuinfo.parent.mkdir()
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {PROCESSORS[processor]}\n")
    assert QEMU is not None
    command = [QEMU, "-cpu", processor, "-L", str(directory), sys.executable, "-c", script, *arguments]
    chosen = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}  # for this machine
    done = subprocess.run(  # noqa: S603
        command, cwd=ROOT, env=chosen, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_product(path: Path, weights: NDArray[np.int8]) -> None:
    constants = {"w": weights, "one": np.float32(1), "scales": np.ones(48, np.float32), "zero": np.uint8(0)}
    node = helper.make_node("MatMulIntegerToFloat", ["x", "w", "one", "scales", "zero"], ["y"], domain="com.microsoft")
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["T", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", 48])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("is_ours", [True, False], ids=["our weights", "weights of before"])
def test_products_of_8_bits_are_exact_without_vnni(tmp_path: Path, processor: str, rows: int, is_ours: bool) -> None:
    drawn = np.random.default_rng(0).integers(100, 128, (64, 48)).astype(np.int8)
    weights = QuantizedLinear(torch.tensor(drawn.T).double()).weight.numpy() if is_ours else drawn
    write_product(tmp_path / "product.onnx", weights)
    exact = np.tile(255 * weights.astype(np.int64).sum(axis=0), (rows, 1))

    found = emulate(tmp_path, processor, PRODUCT, str(tmp_path / "product.onnx"), str(rows))
    np.testing.assert_array_equal(found["false"], exact)
    if is_ours:
        np.testing.assert_array_equal(found["true"], exact)
    elif processor == "max":
        assert np.max(np.abs(found["true"] - exact) / exact) > 0.4  # else the emulated processor has VNNI


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_text_does_not_depend_on_its_padding(tiny_checkpoint: Checkpoint, tmp_path: Path, processor: str) -> None:
    artifact = tmp_path / "artifact"
    export_artifact(tiny_checkpoint, artifact, explains=False)
    differing = emulate(tmp_path, processor, LENGTHS, str(artifact))
    if processor == "Nehalem":
        assert differing.pop("1") > 0  # without the step they would
    assert set(differing.values()) == {0}
