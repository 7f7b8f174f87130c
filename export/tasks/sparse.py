"""Reads a SPLADE network: `...ForMaskedLM`, alone or as sentence-transformers' SparseEncoder."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from export.errors import UnsupportedModel
from export.families.settings import require_settings
from export.json_files import read_json
from export.tasks.source import TaskSource
from model.config import EncoderConfig
from model.tasks.settings import SparseSettings

SATURATIONS: Mapping[str, int] = {"relu": 1, "log1p_relu": 2}
BIAS, TABLE = "task_layers.bias", "task_layers.table"
DECODER_BIAS, DECODER = "task_layers.decoder.bias", "task_layers.decoder.weight"


def read(source: TaskSource, config: EncoderConfig) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network with its masked language model's head, and the head's weights.

    Raises:
        UnsupportedModel: another pooling than SPLADE's maximum, or a head that contradicts itself.
    """
    layers = source.layers("MASKED_LM")
    state = source.pick(layers)
    read_settings = layers.read_settings(source.described)
    has_bias = read_settings.pop("bias", True)
    tied = _tie(state, source)
    state = _with_one_bias(state, has_bias=has_bias, tied=tied)
    settings = SparseSettings(bias=has_bias, tied=tied, saturations=_read_saturations(source), **read_settings)
    return replace(config, task="sparse", task_settings=settings), state


def _read_saturations(source: TaskSource) -> int:
    folder = source.pipeline.modules.get("SpladePooling")
    said: Mapping[str, Any] = read_json(folder / "config.json") if folder else {}
    require_settings(said, {"pooling_strategy": ("max",), "activation_function": tuple(SATURATIONS)})
    return SATURATIONS[said.get("activation_function", "relu")]


def _with_one_bias(state: Mapping[str, Tensor], *, has_bias: bool, tied: bool) -> dict[str, Tensor]:
    """The bias of the logits: the decoder's, which a tied one shares with the head it stands in."""
    found = [state[name] for name in (DECODER_BIAS, BIAS) if name in state]
    if tied and len(found) == 2 and not torch.equal(*found):
        raise UnsupportedModel("the checkpoint holds two biases of its logits, and they differ: which one is right?")
    rest = {name: tensor for name, tensor in state.items() if name not in (BIAS, DECODER_BIAS)}
    return {**rest, BIAS: found[0]} if has_bias and found else rest


def _tie(state: dict[str, Tensor], source: TaskSource) -> bool:
    """Whether the decoder's weights are the token embeddings; takes them out of the state, or gives them our name."""
    decoder = state.pop(DECODER, None)
    is_tied = source.described.get("tie_word_embeddings", True)
    if decoder is None:
        if not is_tied:
            raise UnsupportedModel("tie_word_embeddings is false, and the checkpoint has no weights of the decoder")
        return True
    embeddings = source.family.read_state(source.tensors, source.described)["embeddings.token.weight"]
    if torch.equal(decoder, embeddings):
        return True
    if is_tied:
        raise UnsupportedModel(
            "the decoder's weights differ from the token embeddings, and tie_word_embeddings says they are the same"
        )
    state[TABLE] = decoder
    return False
