"""The rate of ONNX Runtime's large matrix product on a device: what a card gives a graph at most.

The operands stay on the device, the data is random (zeros take less power and run faster), and several products follow
one another in a graph, so that neither copies nor launches count.
"""

import os
import time

import numpy as np
from onnx import TensorProto, helper, numpy_helper

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported
import onnxruntime as ort

from service.inference.onnx_session import PROVIDERS

CHAIN = 8  # products a run
SECONDS = 1.0
OPSET = 21
ELEMENTS = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}  # all else multiplies float32


def measure_peak(precision: str, provider: str, size: int) -> float:
    """Operations a second; a multiply-add is two.

    Args:
        precision: of the operands; int8 artifacts are held against fp32's, which their attention runs in.
        provider: `cuda` or `cpu`, with the options that the service gives it.
        size: n of the [n, n] operands.
    """
    graph = _chain(ELEMENTS.get(precision, TensorProto.FLOAT), size)
    session = ort.InferenceSession(graph, providers=list(PROVIDERS[provider]), enable_fallback=0)
    binding = session.io_binding()
    x = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x, provider, 0))
    binding.bind_output("y", provider, 0)
    for _ in range(2):
        session.run_with_iobinding(binding)
    began, runs = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < SECONDS or not runs:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        runs += 1
    return 2.0 * size**3 * CHAIN * runs / elapsed


def _chain(element: int, size: int) -> bytes:
    """`x W W ... W` in the element type; W's scale keeps the values' size."""
    weights = np.random.default_rng(1).standard_normal((size, size), dtype=np.float32) / np.sqrt(size)
    nodes = [helper.make_node("Cast", ["x"], ["x0"], to=element)]
    nodes += [helper.make_node("MatMul", [f"x{index}", "w"], [f"x{index + 1}"]) for index in range(CHAIN)]
    nodes.append(helper.make_node("Identity", [f"x{CHAIN}"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "peak",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (size, size))],
        [helper.make_tensor_value_info("y", element, (size, size))],
        [numpy_helper.from_array(weights.astype(helper.tensor_dtype_to_np_dtype(element)), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return bytes(model.SerializeToString())
