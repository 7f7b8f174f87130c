"""What a graph is fed, under the names of its inputs, and the PyTorch encoder on the same arrays."""

from collections.abc import Collection

import numpy as np
import torch
from numpy.typing import NDArray

from export.tokens import TextBatch
from model.config import EncoderConfig
from model.encoder import Encoder, EncoderOutput
from model.graph_names import ATTENTION_LAYERS, HEAD_GATES, INPUT_IDS, LENGTHS, NORM_LAYERS, TOKEN_TYPE_IDS

Inputs = dict[str, NDArray[np.generic]]


def graph_inputs(
    config: EncoderConfig,
    input_ids: NDArray[np.integer],
    lengths: NDArray[np.integer],
    *,
    layers: Collection[int] = (),
    token_type_ids: NDArray[np.integer] | None = None,
) -> Inputs:
    """The inputs of one batch, without gates on heads.

    Args:
        config: of the network.
        input_ids: int64 [B, S].
        lengths: int64 [B].
        layers: those whose attention weights and value norms are wanted.
        token_type_ids: int64 [B, S], for a network that takes them; None for all 0.
    """
    wanted = np.isin(np.arange(config.num_layers), list(layers))
    inputs: Inputs = {INPUT_IDS: input_ids, LENGTHS: lengths, ATTENTION_LAYERS: wanted, NORM_LAYERS: wanted}
    if config.type_vocab_size:
        inputs[TOKEN_TYPE_IDS] = np.zeros_like(input_ids) if token_type_ids is None else token_type_ids
    return inputs


def batch_inputs(config: EncoderConfig, batch: TextBatch, *, layers: Collection[int] = ()) -> Inputs:
    """The inputs of a batch of texts or pairs, without gates on heads; `layers` as of `graph_inputs`."""
    types = None if batch.token_type_ids is None else batch.token_type_ids.numpy()
    return graph_inputs(config, batch.input_ids.numpy(), batch.lengths.numpy(), layers=layers, token_type_ids=types)


def run_encoder(encoder: Encoder, inputs: Inputs) -> EncoderOutput:
    """What the PyTorch encoder gives for what a graph is fed."""
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.inference_mode():
        output: EncoderOutput = encoder(
            tensors[INPUT_IDS],
            tensors[LENGTHS],
            token_type_ids=tensors.get(TOKEN_TYPE_IDS),
            head_gates=tensors.get(HEAD_GATES),
            norm_layers=tensors[NORM_LAYERS],
        )
    return output
