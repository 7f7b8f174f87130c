"""Qwen3 (Qwen3-Embedding, Qwen3-Reranker): Llama's causal layers with norms on queries and keys.

The originals pad at the left; positions are relative, so padding at the right changes nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.families.decoder import NAMES, PREFIXES, read_decoder
from export.families.naming import rename
from export.families.rope import find_rope
from export.families.settings import local_layers
from export.families.task_layers import OUTPUT, TaskLayers, fixed
from model.config import EncoderConfig, Pooling

__all__ = ("CLASSIFIER", "LANGUAGE_MODEL_HEAD", "MODEL_TYPES", "PREFIXES", "read_config", "read_state")

MODEL_TYPES = ("qwen3",)
LANGUAGE_MODEL_HEAD = "lm_head.weight"
IGNORED = ("lm_head.", "score.", "rotary_emb.")
CLASSIFIER = TaskLayers({"score": OUTPUT}, fixed(dense_activation=None, pooling="last"))


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a Qwen3 config.json.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    read = read_decoder(config, pooling, find_rope(config), causal=True, query_key_norm=True)
    near = _windowed(config)
    return replace(read, local_layers=near, window=config["sliding_window"] - 1 if near else None)


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors."""
    del config  # names are all there is to change
    return rename(tensors, NAMES, prefixes=PREFIXES, ignored=IGNORED)


def _windowed(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers with a window: those of `layer_types`, or in older files the last ones."""
    if not config.get("use_sliding_window") or config.get("sliding_window") is None:
        return ()
    layers = config["num_hidden_layers"]
    if config.get("layer_types") is None:
        return tuple(range(config["max_window_layers"], layers))
    return local_layers(config["layer_types"], layers)
