"""Traces an encoder into the ONNX graph of the artifact's contract.

Names, order and shapes of inputs and outputs are fixed here (see `model.artifact`). Before tracing, what attention
cancels is folded away and what value norms need is shortened, exactly in real arithmetic: the fused operator takes no
bias, so each of the three would cost a pass over [B, S, H*K].
"""

import copy
import gc
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import onnx_ir
import torch
from onnx_ir.passes import common as passes
from onnxscript.optimizer import fold_constants
from torch import Tensor, nn

from export.functions import local_functions
from export.texts import Inputs, graph_inputs
from model.artifact import (
    ATTENTION_LAYERS,
    HEAD_GATES,
    INPUT_IDS,
    LAST_HIDDEN_STATE,
    LENGTHS,
    NORM_LAYERS,
    SEEN_LENGTHS,
    TOKEN_TYPE_IDS,
    attentions_name,
    value_norms_name,
)
from model.attention import FUSED_OP, MultiHeadAttention
from model.config import EncoderConfig
from model.config_parts import OUTPUT_NAMES
from model.encoder import Encoder
from model.value_stream import FUNCTIONS_DOMAIN, FUNCTIONS_VERSION, is_linear, reduced_factor

OPSET = 24
BATCH, SEQUENCE = "batch", "sequence"
DYNAMIC_SIZES: Mapping[str, Mapping[int, str]] = {
    INPUT_IDS: {0: BATCH, 1: SEQUENCE},
    LENGTHS: {0: BATCH},
    ATTENTION_LAYERS: {},
    NORM_LAYERS: {},
    HEAD_GATES: {0: "gated"},  # B, or 0
    TOKEN_TYPE_IDS: {0: BATCH, 1: SEQUENCE},
    SEEN_LENGTHS: {0: BATCH},
}


def input_names(config: EncoderConfig) -> tuple[str, ...]:
    """Names of the graph's inputs, in order."""
    types = (TOKEN_TYPE_IDS,) if config.type_vocab_size else ()
    seen = (SEEN_LENGTHS,) if config.has_unseen_tokens else ()
    return (INPUT_IDS, LENGTHS, ATTENTION_LAYERS, NORM_LAYERS, HEAD_GATES, *types, *seen)


def output_names(config: EncoderConfig) -> tuple[str, ...]:
    """Names of the graph's outputs, in order."""
    layers = range(config.num_layers)
    return (OUTPUT_NAMES[config.task], LAST_HIDDEN_STATE, *map(attentions_name, layers), *map(value_norms_name, layers))


def trace(encoder: Encoder) -> onnx_ir.Model:
    """The encoder as one graph: fused attention in every layer, weights on demand. The encoder is left as it was."""
    folded = fold_biases(encoder)
    reduce_factors(folded)
    traced = _Traced(folded.use("onnx")).eval()
    return _finish(export_module(traced, _example(encoder.config), output_names(encoder.config), DYNAMIC_SIZES))


def export_module(
    module: nn.Module,
    example: Inputs,
    outputs: Sequence[str],
    sizes: Mapping[str, Mapping[int, str]],
    *,
    rewrites: bool = True,
) -> onnx_ir.Model:
    """A module in evaluation mode as PyTorch's exporter writes it; inputs and outputs in the graph's order.

    `sizes` has, of each input that there may be, names of the dimensions that differ from call to call. `rewrites` is
    for fewer nodes: of a graph of a thousand, looking for patterns in it takes as long as all the rest.
    """
    with quiet_exporter(), no_collection():
        program = torch.onnx.export(
            module,
            (),
            kwargs={name: torch.from_numpy(array) for name, array in example.items()},
            dynamo=True,
            opset_version=OPSET,
            input_names=list(example),
            output_names=list(outputs),
            dynamic_shapes={name: dict(sizes[name]) for name in example},
            optimize=rewrites,
            verbose=False,
        )
    model = cast(torch.onnx.ONNXProgram, program).model
    if not rewrites:
        _fold(model)
    return passes.ClearMetadataAndDocStringPass()(model).model  # which name files of this machine, and lines of them


def _fold(model: onnx_ir.Model) -> None:
    """What the exporter does to a graph besides rewriting it: every value is computed once, constants now."""
    passes.InlinePass()(model)
    fold_constants(model)
    onnx_ir.passes.Sequential(
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        passes.RemoveUnusedOpsetsPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.NameFixPass(),
    )(model)


class _Traced(nn.Module):
    """The encoder with a flat tuple of outputs, inputs and outputs in the order of the contract."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(  # noqa: PLR0917 - the exporter traces positional inputs
        self,
        input_ids: Tensor,
        lengths: Tensor,
        attention_layers: Tensor,
        norm_layers: Tensor,
        head_gates: Tensor,
        token_type_ids: Tensor | None = None,
        seen_lengths: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        output = self.encoder(
            input_ids,
            lengths,
            attention_layers,
            token_type_ids,
            head_gates=head_gates,
            norm_layers=norm_layers,
            seen_lengths=seen_lengths,
        )
        tensors = (output.task_output, output.last_hidden_state, *output.attentions, *output.value_norms)
        return tuple(tensor.float() for tensor in tensors)  # the contract's outputs are, whatever the precision inside


def _example(config: EncoderConfig) -> Inputs:
    """A batch of 2 x 3: sizes of 1 would be taken for constants."""
    sequence = min(3, config.max_positions)
    inputs = graph_inputs(config, np.zeros((2, sequence), np.int64), np.array([sequence, 1]))
    inputs[HEAD_GATES] = np.ones((2, sum(config.num_heads)), np.float32)
    return {name: inputs[name].copy() for name in input_names(config)}


def _finish(model: onnx_ir.Model) -> onnx_ir.Model:
    """Adds the local functions that it calls, and lets sizes be 0 of what is not wanted."""
    for function in local_functions():
        model.functions[function.identifier()] = function
    model.opset_imports[FUNCTIONS_DOMAIN] = FUNCTIONS_VERSION
    for output in model.graph.outputs:
        if output.name and output.name.startswith(("attentions.", "value_norms.")) and output.shape is not None:
            heads, sequences = output.shape[1], len(output.shape) - 2
            shape = onnx_ir.Shape([f"{output.name}.{BATCH}", heads, *[f"{output.name}.{SEQUENCE}"] * sequences])
            for value in _with_casts(output):
                value.shape = shape.copy()
    return passes.RemoveUnusedFunctionsPass()(model).model  # type: ignore[no-untyped-call]


def _with_casts(value: onnx_ir.Value) -> Iterator[onnx_ir.Value]:
    """Yields a value and, if it is the result of a Cast, the value that was cast.

    ONNX Runtime gives two values of one symbolic shape one buffer, and a layer's weights are not of another's shape.
    """
    yield value
    while (node := value.producer()) is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        value = node.inputs[0]
        yield value


def fused_attention(model: onnx_ir.Model) -> dict[str, int]:
    """Fused attention nodes of a graph, by operator."""
    count = sum(node.op_type == FUSED_OP and node.domain in ("", "ai.onnx") for node in model.graph.all_nodes())
    return {f"ai.onnx.{FUSED_OP}": count} if count else {}


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Keeps the exporter's own remarks (torchvision is missing, axis names are shared) off the terminal."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def no_collection() -> Iterator[None]:
    """Pauses the garbage collector, which would go again and again through the many objects that a trace keeps."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


KEYS_MATTER = ("rotary", "disentangled")  # positions with which a bias of keys changes the weights


def fold_biases(encoder: Encoder) -> Encoder:
    """A copy without key and value biases that computes the same.

    q (k + b_k) = q k + q b_k: the same for every key of a query, so the softmax cancels b_k; not so where rotary
    positions turn b_k by another angle at every key, where keys are normed, or where they meet queries of distances,
    and it stays there. And since the weights of a query sum to 1, sum_j a_j (v_j + b_v) = sum_j a_j v_j + b_v: b_v
    moves behind the output projection as W_o b_v; not so where values are more than weighed (`model.value_stream`), and
    it stays there. What stays behind is where a head's context is 0: at -b_v now, which is then its `null_context`.
    """
    folded = copy.deepcopy(encoder)
    attentions = [module for module in folded.modules() if isinstance(module, MultiHeadAttention) and module.num_heads]
    config = encoder.config
    is_normed = config.query_key_norm or config.query_key_layer_norm
    keys = attentions if config.attention_positions not in KEYS_MATTER and not is_normed else []
    for attention in keys:
        attention.key.bias = None  # type: ignore[assignment]  # nn.Linear takes None for no bias
    for attention in attentions if is_linear(config) else ():
        if attention.value.bias is not None:
            _move_value_bias(attention)
    return folded


def _move_value_bias(attention: MultiHeadAttention) -> None:
    bias, output = attention.per_query_head(attention.value.bias.detach()), attention.output
    moved = output.weight.double() @ bias.double()  # in float64, so that folding adds no rounding of its own
    moved = moved if output.bias is None else output.bias.double() + moved
    output.bias = nn.Parameter(moved.to(output.weight.dtype), requires_grad=False)
    attention.null_context = -bias  # without its bias a value of 0 is this
    attention.value.bias = None  # type: ignore[assignment]  # as above


def reduce_factors(encoder: Encoder) -> None:
    """Gives every layer, in place, a short factor for the norms of its values."""
    attentions: list[Any] = [module for module in encoder.modules() if hasattr(module, "value_factor")]  # int8's too
    for attention in attentions:
        if attention.num_heads:
            attention.value_factor = reduced_factor(attention.output_factor())
