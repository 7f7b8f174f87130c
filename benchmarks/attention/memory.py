"""How much memory attention takes as texts grow, with and without its weights; each figure from a process of its own.

Ways: the exported graph without weights, with those of the last layer and of all layers; the encoder in PyTorch, eager
and fused; and two operators of ONNX Runtime alone, the standard `Attention` that the graph uses and the contrib
`MultiHeadAttention`, which takes no padding in its memory-saving form.
"""

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir
from onnx import TensorProto, helper

from benchmarks.attention.memory_worker import HEADS, LAYERS, LONGEST, SIZE, WAYS
from benchmarks.attention.shapes import network
from benchmarks.lib.report import Table
from export.graph import trace

LENGTHS = [256, 512, 1024, 2048, 4096]
OPERATORS: Mapping[str, tuple[str, dict[str, int]]] = {
    "Attention": ("", {"q_num_heads": HEADS, "kv_num_heads": HEADS}),
    "MultiHeadAttention": ("com.microsoft", {"num_heads": HEADS}),
}


def memory(lengths: Sequence[int] = LENGTHS, ways: tuple[str, ...] = tuple(WAYS)) -> Table:
    """Growth of the resident set in MB, by tokens, and the exponent of the last doubling."""
    weights = HEADS * lengths[-1] ** 2 * 4 / 2**20
    columns = ("way", *map(str, lengths), "exponent")
    title = (
        f"Peak memory in MB, {HEADS} heads, {LAYERS} layers (weights of one layer at {lengths[-1]}: {weights:.0f} MB)"
    )
    table = Table("memory", title, columns)
    with tempfile.TemporaryDirectory() as folder:
        write_graphs(Path(folder))
        for way in ways:
            found = [peak(Path(folder), way, tokens) for tokens in lengths]
            growth = found[-1] / found[-2] if min(found[-2:]) > 0 else None  # short texts may take nothing new
            exponent = growth and math.log2(growth) / math.log2(lengths[-1] / lengths[-2])
            cells = dict(zip(map(str, lengths), found, strict=True))
            table.add(way=WAYS[way], exponent=exponent, **cells)
    return table


def write_graphs(folder: Path) -> None:
    """The exported encoder, and each operator alone."""
    onnx_ir.save(trace(network((HEADS,) * LAYERS, SIZE, SIZE, max_positions=LONGEST)), folder / "graph.onnx")
    for name, (domain, attributes) in OPERATORS.items():
        shape: list[str | int | None] = ["batch", "sequence", HEADS * SIZE]
        inputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape) for x in ("query", "key", "value")]
        output = helper.make_tensor_value_info("context", TensorProto.FLOAT, shape)
        node = helper.make_node(name, ["query", "key", "value"], ["context"], domain=domain)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph([node], name, inputs, [output])
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=11), folder / f"{name}.onnx")


def peak(folder: Path, way: str, tokens: int) -> float:
    """MB by which a process grows at most in one run over `tokens`, after one over few."""
    command = [sys.executable, "-m", "benchmarks.attention.memory_worker", str(folder), way, str(tokens)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own worker
    grown: float = json.loads(done.stdout)["grown_mb"]
    return grown
