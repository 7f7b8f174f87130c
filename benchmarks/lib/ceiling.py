"""How fast could it be? The floating-point work of one token, and the rate at which this machine multiplies.

The rate is that of ONNX Runtime's own matrix product, alone, on the encoder's own matrix shapes: a graph made of these
products cannot beat it. Work that is no matrix product (norms, GELU, softmax, embedding lookup) counts as free, so the
limit is a bound from above.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from model.config import EncoderConfig

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported
import onnxruntime as ort

Product = Literal["fp32", "int8"]
OPSET = 21
SECONDS = 0.3  # length of one measurement


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations of one token; a multiply-add is two.

    Attributes:
        linear: in products with weights; independent of the length.
        attention: in Q K^T and P V, for a text of the given length.
    """

    linear: float
    attention: float


def work_per_token(config: EncoderConfig, sequence_length: float) -> Work:
    """Work of one token of a text of S = `sequence_length` tokens.

    A layer of H heads: Q and K [D, HK], V [D, HV], the output [HV, D], the output gate [D, H] where there is one, the
    feed-forward [D, I] (twice where it is gated) and [I, D]; then S keys for each head, K + V multiply-adds each. For a
    mix of texts S is the token-weighted mean length.
    """
    hidden, heads = config.hidden_size, sum(config.num_heads)
    linear = 2 * hidden * heads * (2 * config.d_k + 2 * config.d_v + config.output_gate)
    linear += 2 * hidden * config.intermediate_size * (2 + config.gated) * config.num_layers
    return Work(float(linear), 2.0 * sequence_length * heads * (config.d_k + config.d_v))


def mean_length(lengths: list[int]) -> float:
    """Token-weighted mean length: the length of the text that a random token finds itself in."""
    return sum(length * length for length in lengths) / sum(lengths)


def limit_tokens_per_s(work: Work, *, product_rate: float, attention_rate: float) -> float:
    """Tokens a second if every product ran at its measured rate and all else were free."""
    return 1 / (work.linear / product_rate + work.attention / attention_rate)


def measure_product_rate(config: EncoderConfig, product: Product, rows: int, *, workers: int, threads: int) -> float:
    """Operations a second of ONNX Runtime's matrix product over one layer's weight shapes.

    Args:
        config: the network whose shapes are used.
        product: `fp32` is MatMul, `int8` is MatMulIntegerToFloat with uint8 activations and int8 weights.
        rows: M, the padded tokens of one run.
        workers: threads that run products at the same time.
        threads: intra-op threads of each.
    """
    shapes = list(_weight_shapes(config))
    session, feeds = _products(shapes, product, rows, threads)
    operations = sum(2.0 * rows * depth * width for depth, width in shapes)

    def repeat(seconds: float) -> float:
        began, runs = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < seconds:
            session.run(None, feeds)
            runs += 1
        return operations * runs / elapsed

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(repeat, [SECONDS / 4] * workers))
        return sum(pool.map(repeat, [SECONDS] * workers))


def _weight_shapes(config: EncoderConfig) -> Iterator[tuple[int, int]]:
    """Depth and width of one layer's products, of the layer with most heads."""
    heads, hidden, inner = max(config.num_heads), config.hidden_size, config.intermediate_size
    if heads:
        yield from [(hidden, heads * config.d_k)] * 2
        yield hidden, heads * config.d_v
        yield heads * config.d_v, hidden
    yield from [(hidden, inner)] * (1 + config.gated)
    yield inner, hidden


def _products(
    shapes: list[tuple[int, int]], product: Product, rows: int, threads: int
) -> tuple[ort.InferenceSession, dict[str, NDArray[Any]]]:
    """A session that holds one product a shape, and its inputs."""
    graph = onnx.GraphProto(name="products")
    make = _fp32_product if product == "fp32" else _int8_product
    feeds = {f"x{index}": make(graph, index, rows, *shape) for index, shape in enumerate(shapes)}
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]), feeds


def _fp32_product(graph: onnx.GraphProto, index: int, rows: int, depth: int, width: int) -> NDArray[Any]:
    """Adds `MatMul(x [rows, depth], w [depth, width])`; returns x."""
    random = np.random.default_rng(index)
    weights = random.standard_normal((depth, width), dtype=np.float32)
    _add_product(graph, helper.make_node("MatMul", [f"x{index}", f"w{index}"], [f"y{index}"]), {f"w{index}": weights})
    _add_values(graph, index, TensorProto.FLOAT, (rows, depth), (rows, width))
    return random.standard_normal((rows, depth), dtype=np.float32)


def _int8_product(graph: onnx.GraphProto, index: int, rows: int, depth: int, width: int) -> NDArray[Any]:
    """Adds `MatMulIntegerToFloat` of uint8 x [rows, depth], zero point 128, and int8 w by column; returns x."""
    random = np.random.default_rng(index)
    constants: dict[str, NDArray[Any]] = {
        f"w{index}": random.integers(-127, 128, (depth, width), dtype=np.int8),
        f"x_scale{index}": np.array(0.01, dtype=np.float32),
        f"w_scale{index}": np.full(width, 0.01, dtype=np.float32),
        f"x_zero{index}": np.array(128, dtype=np.uint8),
    }
    inputs = [f"x{index}", *constants]
    node = helper.make_node("MatMulIntegerToFloat", inputs, [f"y{index}"], domain="com.microsoft")
    _add_product(graph, node, constants)
    _add_values(graph, index, TensorProto.UINT8, (rows, depth), (rows, width))
    return random.integers(0, 256, (rows, depth), dtype=np.uint8)


def _add_product(graph: onnx.GraphProto, node: onnx.NodeProto, constants: dict[str, NDArray[Any]]) -> None:
    graph.node.append(node)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())


def _add_values(
    graph: onnx.GraphProto, index: int, element: int, taken: tuple[int, int], given: tuple[int, int]
) -> None:
    graph.input.append(helper.make_tensor_value_info(f"x{index}", element, taken))
    graph.output.append(helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, given))
