"""An artifact of two attention layers that obeys the graph contract, written as ONNX text, and the same in numpy.

Each layer adds its attention over the hidden state, with the identity for projections, to that state.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
from numpy.typing import NDArray

from model.artifact import GRAPH, TOKENIZER, Artifact, Manifest, write_manifest
from model.config import EncoderConfig
from service.inference.backend import Batch
from tests.service.fake_engine import NO_PROMPTS, make_manifest

VOCAB_SIZE, HIDDEN_SIZE, NUM_HEADS, MAX_LENGTH = 50, 8, (2, 4), 32
INPUTS = ("input_ids", "lengths", "attention_layers", "token_type_ids")
OUTPUTS = ("pooled", "last_hidden_state", "attentions.0", "attentions.1")

_LAYER = """
    context_{layer} = Attention <q_num_heads = {heads}, kv_num_heads = {heads}>
        (hidden_{layer}, hidden_{layer}, hidden_{layer}, , , , lengths)
    hidden_{next} = Add (hidden_{layer}, context_{layer})
    at_{layer} = Constant <value = int64 {{{layer}}}> ()
    wanted_{layer} = Gather (attention_layers, at_{layer})
    attentions_{layer} = If (wanted_{layer}) <
        then_branch = weights_{layer} () => (float[B, {heads}, S, S] probabilities_{layer}) {{
            unused_{layer}, , , probabilities_{layer} = Attention
                <q_num_heads = {heads}, kv_num_heads = {heads}, qk_matmul_output_mode = 3>
                (hidden_{layer}, hidden_{layer}, hidden_{layer}, , , , lengths)
        }},
        else_branch = nothing_{layer} () => (float[n, {heads}, s, s] empty_{layer}) {{
            shape_{layer} = Constant <value = int64[4] {{0, {heads}, 0, 0}}> ()
            empty_{layer} = ConstantOfShape (shape_{layer})
        }}
    >
"""
_MODEL = """
<ir_version: 10, opset_import: ["" : 24]>
tiny ({inputs}) => ({outputs})
{{
    words = Gather (words_table, input_ids)
    {types}
    {layers}
    last_hidden_state = Identity (hidden_{depth})
    size = Shape <start = 1, end = 2> (input_ids)
    zero = Constant <value = int64 {{0}}> ()
    one = Constant <value = int64 {{1}}> ()
    axis = Constant <value = int64[1] {{1}}> ()
    last = Constant <value = int64[1] {{-1}}> ()
    size_scalar = Squeeze (size)
    places = Range (zero, size_scalar, one)
    column = Unsqueeze (lengths, axis)
    real = Less (places, column)
    mask = Cast <to = 1> (real)
    mask_3d = Unsqueeze (mask, last)
    masked = Mul (last_hidden_state, mask_3d)
    sum = ReduceSum <keepdims = 0> (masked, axis)
    count = Cast <to = 1> (column)
    pooled = Div (sum, count)
}}
"""
_TYPES = {
    "input_ids": "int64[B, S] input_ids",
    "lengths": "int64[B] lengths",
    "attention_layers": "bool[2] attention_layers",
    "token_type_ids": "int64[B, S] token_type_ids",
    "pooled": "float[B, 8] pooled",
    "last_hidden_state": "float[B, S, 8] last_hidden_state",
    "attentions.0": "float[b0, 2, s0, s0] attentions_0",
    "attentions.1": "float[b1, 4, s1, s1] attentions_1",
}


def tables() -> dict[str, NDArray[np.float32]]:
    """Word vectors [50, 8] and token type vectors [2, 8]."""
    random = np.random.default_rng(0)
    sizes = {"words_table": (VOCAB_SIZE, HIDDEN_SIZE), "types_table": (2, HIDDEN_SIZE)}
    return {name: random.normal(0.0, 0.3, size).astype(np.float32) for name, size in sizes.items()}


def write_tiny_artifact(
    directory: Path,
    *,
    inputs: tuple[str, ...] = INPUTS,
    outputs: tuple[str, ...] = OUTPUTS,
    manifest_inputs: tuple[str, ...] | None = None,
    graph: bytes | None = None,
) -> Artifact:
    """Writes and opens an artifact; the other arguments make it a wrong one."""
    (directory / GRAPH).write_bytes(graph if graph is not None else _graph(inputs, outputs))
    (directory / TOKENIZER).write_text("{}")
    write_manifest(directory, _manifest(directory, inputs if manifest_inputs is None else manifest_inputs, outputs))
    return Artifact.open(directory)


def reference(batch: Batch, row: int) -> Mapping[str, NDArray[np.float32]]:
    """What the graph is to compute for one text of a batch, without its padding: `pooled` [D], ..."""
    ids = batch.input_ids[row, : batch.lengths[row]]
    hidden = (tables()["words_table"][ids] + tables()["types_table"][0]).astype(np.float64)
    outputs = {}
    for layer, heads in enumerate(NUM_HEADS):
        split = hidden.reshape(len(ids), heads, -1).transpose(1, 0, 2)
        scores = split @ split.transpose(0, 2, 1) / np.sqrt(split.shape[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        hidden = hidden + (weights @ split).transpose(1, 0, 2).reshape(hidden.shape)
        outputs[f"attentions.{layer}"] = weights
    outputs |= {"last_hidden_state": hidden, "pooled": hidden.mean(axis=0)}
    return {name: value.astype(np.float32) for name, value in outputs.items()}


def _graph(inputs: tuple[str, ...], outputs: tuple[str, ...]) -> bytes:
    has_types = "token_type_ids" in inputs
    types = "types = Gather (types_table, token_type_ids)" if has_types else "types = Identity (first_type)"
    layers = "".join(_LAYER.format(layer=i, heads=heads, next=i + 1) for i, heads in enumerate(NUM_HEADS))
    text = _MODEL.format(
        inputs=", ".join(_TYPES.get(name, f"float[1] {name}") for name in inputs),
        outputs=", ".join(_TYPES[name] for name in outputs),
        types=types + "\n    hidden_0 = Add (words, types)",
        layers=layers,
        depth=len(NUM_HEADS),
    )
    model = onnx.parser.parse_model(text)
    initializers = {"words_table": tables()["words_table"]}
    initializers |= (
        {"types_table": tables()["types_table"]} if has_types else {"first_type": tables()["types_table"][0]}
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in initializers.items())
    for node in (node for node in model.graph.node if node.op_type == "If"):  # ONNX text has no names with a dot
        node.output[0] = node.output[0].replace("attentions_", "attentions.")
    for value in model.graph.output:
        value.name = value.name.replace("attentions_", "attentions.")
    onnx.checker.check_model(model)
    serialized: bytes = model.SerializeToString()
    return serialized


def _manifest(directory: Path, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Manifest:
    config = EncoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        num_heads=NUM_HEADS,
        d_k=4,  # of the first layer; nothing here reads it
        d_v=4,
        intermediate_size=1,
        max_positions=MAX_LENGTH,
    )
    made = make_manifest(directory, replace(NO_PROMPTS, normalize=False), inputs=inputs)
    fused = {"ai.onnx.Attention": len(NUM_HEADS)}
    sizes: Any = {"config": config, "max_sequence_length": MAX_LENGTH, "fused_attention": fused}
    return replace(made, model="tests/tiny", outputs=outputs, **sizes)
