"""Traces an encoder into the ONNX graph of the artifact's contract.

Names, order and shapes of inputs and outputs are fixed here (see `model.artifact`). It knows nothing of files.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir
import torch
from torch import Tensor, nn

from export.fold import fold_biases
from export.functions import local_functions
from model.artifact import (
    ATTENTION_LAYERS,
    INPUT_IDS,
    LAST_HIDDEN_STATE,
    LENGTHS,
    POOLED,
    TOKEN_TYPE_IDS,
    attentions_name,
)
from model.attention import FUSED_DOMAIN, FUSED_OP, WEIGHTS_DOMAIN, WEIGHTS_OP_VERSION
from model.config import EncoderConfig
from model.encoder import Encoder

OPSET = 24
BATCH, SEQUENCE = "batch", "sequence"


def input_names(config: EncoderConfig) -> tuple[str, ...]:
    """Names of the graph's inputs, in order."""
    names = (INPUT_IDS, LENGTHS, ATTENTION_LAYERS)
    return (*names, TOKEN_TYPE_IDS) if config.type_vocab_size else names


def output_names(config: EncoderConfig) -> tuple[str, ...]:
    """Names of the graph's outputs, in order."""
    return (POOLED, LAST_HIDDEN_STATE, *(attentions_name(layer) for layer in range(config.num_layers)))


def trace(encoder: Encoder) -> onnx_ir.Model:
    """The encoder as one graph: fused attention in every layer, weights on demand in the local function.

    The encoder is left as it was: folding and tracing happen on a copy.
    """
    folded, _ = fold_biases(encoder)
    traced = _Traced(folded.use("onnx")).eval()
    example = _example(encoder.config)
    names = input_names(encoder.config)
    dynamic = {INPUT_IDS: {0: BATCH, 1: SEQUENCE}, LENGTHS: {0: BATCH}, ATTENTION_LAYERS: {}}
    if TOKEN_TYPE_IDS in names:
        dynamic[TOKEN_TYPE_IDS] = {0: BATCH, 1: SEQUENCE}
    with _quiet_exporter():
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

    def forward(
        self, input_ids: Tensor, lengths: Tensor, attention_layers: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        output = self.encoder(input_ids, lengths, attention_layers, token_type_ids)
        # Whatever the precision inside, the contract's outputs are float32.
        return tuple(tensor.float() for tensor in (output.pooled, output.last_hidden_state, *output.attentions))


def _example(config: EncoderConfig) -> tuple[Tensor, ...]:
    """A batch of 2 x 3: sizes of 1 would be taken for constants."""
    sequence = min(3, config.max_positions)
    ids = torch.zeros(2, sequence, dtype=torch.int64)
    inputs = (ids, torch.tensor([sequence, 1]), torch.zeros(config.num_layers, dtype=torch.bool))
    return (*inputs, ids.clone()) if config.type_vocab_size else inputs


def _finish(model: onnx_ir.Model) -> onnx_ir.Model:
    """Adds the local functions, and lets the weights' sizes be 0 where they are not wanted."""
    for function in local_functions():
        model.functions[function.identifier()] = function
    model.opset_imports[WEIGHTS_DOMAIN] = WEIGHTS_OP_VERSION
    for output in model.graph.outputs:
        if output.name and output.name.startswith("attentions.") and output.shape is not None:
            heads = output.shape[1]
            output.shape = onnx_ir.Shape([f"{output.name}.{BATCH}", heads, *[f"{output.name}.{SEQUENCE}"] * 2])
    return model


@contextmanager
def _quiet_exporter() -> Iterator[None]:
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
