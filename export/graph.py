"""Traces an encoder into the ONNX graph of the artifact's contract.

Names, order and shapes of inputs and outputs are fixed here (see `model.artifact`). It knows nothing of files.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx_ir
import torch
from torch import Tensor, nn

from export.fold import fold_biases, reduce_factors
from export.functions import local_functions
from export.inputs import graph_inputs
from model.config import EncoderConfig
from model.dot_product import FUSED_DOMAIN, FUSED_OP
from model.encoder import Encoder
from model.graph_names import (
    ATTENTION_LAYERS,
    HEAD_GATES,
    INPUT_IDS,
    LAST_HIDDEN_STATE,
    LENGTHS,
    NORM_LAYERS,
    TOKEN_TYPE_IDS,
    attentions_name,
    value_norms_name,
)
from model.head_gates import FUNCTIONS_DOMAIN, FUNCTIONS_VERSION
from model.tasks.settings import OUTPUT_NAMES

OPSET = 24
BATCH, SEQUENCE, GATED = "batch", "sequence", "gated"


def input_names(config: EncoderConfig) -> tuple[str, ...]:
    """Names of the graph's inputs, in order."""
    names = (INPUT_IDS, LENGTHS, ATTENTION_LAYERS, NORM_LAYERS, HEAD_GATES)
    return (*names, TOKEN_TYPE_IDS) if config.type_vocab_size else names


def output_names(config: EncoderConfig) -> tuple[str, ...]:
    """Names of the graph's outputs, in order."""
    layers = range(config.num_layers)
    return (OUTPUT_NAMES[config.task], LAST_HIDDEN_STATE, *map(attentions_name, layers), *map(value_norms_name, layers))


def trace(encoder: Encoder) -> onnx_ir.Model:
    """The encoder as one graph: fused attention in every layer, weights on demand in the local function.

    The encoder is left as it was: folding and tracing happen on a copy.
    """
    folded, _ = fold_biases(encoder)
    reduce_factors(folded)
    traced = _Traced(folded.use("onnx")).eval()
    example = _example(encoder.config)
    names = input_names(encoder.config)
    dynamic = {INPUT_IDS: {0: BATCH, 1: SEQUENCE}, LENGTHS: {0: BATCH}, ATTENTION_LAYERS: {}, NORM_LAYERS: {}}
    dynamic[HEAD_GATES] = {0: GATED}  # B, or 0
    if TOKEN_TYPE_IDS in names:
        dynamic[TOKEN_TYPE_IDS] = {0: BATCH, 1: SEQUENCE}
    with quiet_exporter():
        program = torch.onnx.export(
            traced,
            example,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(names),
            output_names=list(output_names(encoder.config)),
            dynamic_shapes=dynamic,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    return _finish(program.model)


def fused_attention(model: onnx_ir.Model) -> dict[str, int]:
    """Fused attention nodes of a graph, by operator."""
    kinds = Counter(
        f"{node.domain or 'ai.onnx'}.{node.op_type}"
        for node in model.graph.all_nodes()
        if node.op_type == FUSED_OP and node.domain in (FUSED_DOMAIN, "ai.onnx")
    )
    return dict(kinds)


class _Traced(nn.Module):
    """The encoder with a flat tuple of outputs and positional inputs, in the order of the contract."""

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
    ) -> tuple[Tensor, ...]:
        output = self.encoder(
            input_ids, lengths, attention_layers, token_type_ids, head_gates=head_gates, norm_layers=norm_layers
        )
        tensors = (output.task_output, output.last_hidden_state, *output.attentions, *output.value_norms)
        return tuple(tensor.float() for tensor in tensors)  # the contract's outputs are, whatever the precision inside


def _example(config: EncoderConfig) -> tuple[Tensor, ...]:
    """A batch of 2 x 3: sizes of 1 would be taken for constants."""
    sequence = min(3, config.max_positions)
    inputs = graph_inputs(config, np.zeros((2, sequence), np.int64), np.array([sequence, 1]))
    inputs[HEAD_GATES] = np.ones((2, sum(config.num_heads)), np.float32)
    return tuple(torch.from_numpy(inputs[name]).clone() for name in input_names(config))


def _finish(model: onnx_ir.Model) -> onnx_ir.Model:
    """Adds the local functions, and lets sizes be 0 of what is not wanted."""
    for function in local_functions():
        model.functions[function.identifier()] = function
    model.opset_imports[FUNCTIONS_DOMAIN] = FUNCTIONS_VERSION
    for output in model.graph.outputs:
        if output.name and output.name.startswith(("attentions.", "value_norms.")) and output.shape is not None:
            heads, sequences = output.shape[1], len(output.shape) - 2
            shape = onnx_ir.Shape([f"{output.name}.{BATCH}", heads, *[f"{output.name}.{SEQUENCE}"] * sequences])
            for value in _with_casts(output):
                value.shape = shape.copy()
    return model


def _with_casts(value: onnx_ir.Value) -> Iterator[onnx_ir.Value]:
    """A value and, where it is a cast one, what it was cast from.

    ONNX Runtime gives two values of one symbolic shape one buffer, and a layer's weights are not of another's shape.
    """
    yield value
    while (node := value.producer()) is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        value = node.inputs[0]
        yield value


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
