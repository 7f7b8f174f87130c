"""Gemma 3's text network (EmbeddingGemma): norms on both sides of every part, keys and values that several heads read.

Most layers see a window, with a rotary base of their own. An RMSNorm's weight is stored less 1, and token embeddings
without their factor sqrt(D): both join the weights.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families import decoder
from export.families.naming import rename
from export.families.rope import Rope, read_rope
from export.families.settings import GLOBAL, LOCAL, local_layers, positive, require_settings
from model.config import EncoderConfig, Pooling
from model.config_checks import MOST_LAYERS, require

MODEL_TYPES = ("gemma3_text",)
PREFIXES = decoder.PREFIXES
IGNORED = ("lm_head.", "rotary_emb.")
PERIOD = 6  # of older files: every so many layers one sees the whole text
REPRODUCED: Mapping[str, tuple[object, ...]] = {"attn_logit_softcapping": (None,)}
NAMES: Mapping[str, str] = {
    **decoder.NAMES,
    "layers.{}.post_attention_layernorm": "layers.{}.attention_output_norm",
    "layers.{}.pre_feedforward_layernorm": "layers.{}.feed_forward_norm",
    "layers.{}.post_feedforward_layernorm": "layers.{}.feed_forward_output_norm",
}
TOKENS = "embeddings.token.weight"


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a Gemma 3 config.json.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    require_settings(config, REPRODUCED)
    layers = config["num_hidden_layers"]
    require("num_hidden_layers", layers, minimum=1, maximum=MOST_LAYERS)  # before a list of so many is made
    near_layers = local_layers(config.get("layer_types") or _by_period(config), layers)
    far, near = _ropes(config)
    if near_layers and (near.divisor, near.scaling) != (far.divisor, far.scaling):
        raise UnsupportedModel("rotary positions of local and global layers are scaled by different factors")
    causal = not config.get("use_bidirectional_attention")
    sees = config["sliding_window"]
    return decoder.read_decoder(
        config,
        pooling,
        far,
        activation="hidden_activation",
        query_key_norm=True,
        sandwich_norm=True,
        causal=causal,
        score_scale=positive(config, "query_pre_attn_scalar") ** -0.5,
        local_rope_theta=near.theta if near_layers else None,
        local_layers=near_layers,
        window=(sees - 1 if causal else sees // 2) if near_layers else None,
    )


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors."""
    state = rename(tensors, NAMES, prefixes=PREFIXES, ignored=IGNORED)
    factor = math.sqrt(config["hidden_size"])
    return {
        name: tensor * factor if name == TOKENS else tensor + 1 if name.endswith("norm.weight") else tensor
        for name, tensor in state.items()
    }


def _by_period(config: Mapping[str, Any]) -> list[str]:
    period = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or PERIOD
    return [LOCAL if (layer + 1) % period else GLOBAL for layer in range(config["num_hidden_layers"])]


def _ropes(config: Mapping[str, Any]) -> tuple[Rope, Rope]:
    """Of global and of local layers."""
    positions = config["max_position_embeddings"]
    if (parameters := config.get("rope_parameters")) is None:
        scaling = config.get("rope_scaling") or {}
        return read_rope(scaling, theta=config["rope_theta"], positions=positions), read_rope(
            {}, theta=config["rope_local_base_freq"]
        )
    if unknown := sorted(set(parameters) - {GLOBAL, LOCAL}):
        raise UnsupportedModel(f"rope_parameters has {', '.join(unknown)}: {GLOBAL} and {LOCAL} are known")
    return read_rope(parameters[GLOBAL], positions=positions), read_rope(parameters[LOCAL], positions=positions)
