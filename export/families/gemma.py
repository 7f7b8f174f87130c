"""Gemma's encoders: EmbeddingGemma, whose network is Gemma 3's for texts, and the text network of EmbeddingGemma 2.

Both have norms on both sides of every part. Most layers see a window, with a rotary base of their own. Token embeddings
are stored without their factor sqrt(D), and Gemma 3's norms less 1: both join the weights.

EmbeddingGemma 2 has wider heads in the layers that see the whole text, normed values, scores without a scale, and a
third part in every layer, which reads a signal made from the token's embedding. It projects tokens before they are
pooled; a mean, or one of them, may as well be projected itself.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families.decoder import NAMES, PREFIXES, read_decoder
from export.families.family import GLOBAL, LOCAL, REQUIRED, WHOLE_ROTATION, Family, count_layers, local_layers
from export.families.rope import two_ropes
from model.config import EncoderConfig, Pooling
from model.config_parts import Projection

PERIOD = 6  # one layer in 6 sees the whole text, if a file does not name them
GEMMA3_NAMES: Mapping[str, str] = {
    **NAMES,
    "layers.{}.post_attention_layernorm": "layers.{}.attention_output_norm",
    "layers.{}.pre_feedforward_layernorm": "layers.{}.feed_forward_norm",
    "layers.{}.post_feedforward_layernorm": "layers.{}.feed_forward_output_norm",
}
TOKENS = "embeddings.token.weight"
BASES: Mapping[str, float] = {GLOBAL: 1e6, LOCAL: 1e4}


def _read_gemma3_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    layers = count_layers(config)
    near_layers = local_layers(config.get("layer_types") or _by_period(config), layers)
    said = {GLOBAL: config["rope_theta"], LOCAL: config["rope_local_base_freq"]}
    far, near = two_ropes(config, said, BASES, near_layers, scaling=config.get("rope_scaling"))
    causal = not config.get("use_bidirectional_attention")
    sees = config["sliding_window"]
    return read_decoder(
        config,
        pooling,
        far,
        activation="hidden_activation",
        query_key_norm=True,
        sandwich_norm=True,
        causal=causal,
        score_scale=config["query_pre_attn_scalar"] ** -0.5,
        local_rope_theta=near.theta if near_layers else None,
        local_layers=near_layers,
        window=(sees - 1 if causal else sees // 2) if near_layers else None,
    )


def _join_factors(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    factor = math.sqrt(config["hidden_size"])
    return {
        name: tensor * factor if name == TOKENS else tensor + 1 if name.endswith("norm.weight") else tensor
        for name, tensor in state.items()
    }


def _by_period(config: Mapping[str, Any]) -> list[str]:
    period = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or PERIOD
    return [LOCAL if (layer + 1) % period else GLOBAL for layer in range(config["num_hidden_layers"])]


GEMMA3 = Family(
    model_types=("gemma3_text",),
    settings={
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "use_bidirectional_attention": False,
        **dict.fromkeys(("layer_types", "sliding_window_pattern", "_sliding_window_pattern")),
        **dict.fromkeys(("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq")),
    },
    requires={**WHOLE_ROTATION, "attn_logit_softcapping": (None,), "is_causal": (True,)},
    unread=("final_logit_softcapping", "cache_implementation", "hidden_act"),
    prefixes=PREFIXES,
    ignored=("lm_head.",),
    names=GEMMA3_NAMES,
    token_classifier=None,
    read_config=_read_gemma3_config,
    finish=_join_factors,
)


TEXT_PART = "text_config"
TRAINED = 8192  # tokens, by its card; a table of angles for all positions that config.json names takes 0.8 GB
PLACEHOLDERS: Mapping[str, int] = {"image_token_id": 258880, "video_token_id": 258884, "audio_token_id": 258881}
WIDER: Mapping[str, str] = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
GEMMA2_NAMES: Mapping[str, str] = {
    **GEMMA3_NAMES,
    "ple.per_layer_model_projection": "layer_signals.projection",
    "ple.per_layer_projection_norm": "layer_signals.norm",
    "layers.{}": "layers.{}.signal",
    "layers.{}.ple_block.per_layer_input_gate": "layers.{}.signal.gate",
    "layers.{}.ple_block.per_layer_projection": "layers.{}.signal.output",
    "layers.{}.ple_block.post_per_layer_input_norm": "layers.{}.signal.norm",
    "embedding_projection": "task_layers.projections.0",
}


def text_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text network's settings of a config.json with several networks; any other as it is."""
    if config.get("model_type") != "embedding_gemma2":
        return dict(config)
    around = {name: config[name] for name in ("architectures", "auto_map") if name in config}
    replaced = {name: config.get(name, token) for name, token in PLACEHOLDERS.items()}
    return {**(config.get(TEXT_PART) or {}), **around, **replaced, "model_type": "embedding_gemma2_text"}


def _read_gemma2_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    if pooling == "max":
        raise UnsupportedModel("pooling max: EmbeddingGemma 2 projects tokens first, so mean, cls or last is supported")
    layers = count_layers(config)
    kinds = list(config["layer_types"] or _by_period(config))
    near_layers = local_layers([*kinds[:-1], GLOBAL], layers)  # `transformers` rejects another last layer
    far, near = two_ropes(config, dict.fromkeys(BASES), BASES, near_layers, scaling=config.get("rope_scaling"))
    sizes, shared = _head_sizes(config, layers, near_layers)
    whole, local = sizes[-1], sizes[near_layers[0]] if near_layers else sizes[-1]
    if any(size != (local if layer in near_layers else whole) for layer, size in enumerate(sizes)):
        raise UnsupportedModel(
            f"per_layer_config gives heads of sizes {sizes}: one for each kind of layer is supported"
        )
    longest = min(config["max_position_embeddings"], TRAINED)
    read = read_decoder(
        {**config, "head_dim": whole, "num_key_value_heads": None, "max_position_embeddings": longest},
        pooling,
        far,
        activation="hidden_activation",
        query_key_norm=True,
        value_norm=True,
        sandwich_norm=True,
        score_scale=1.0,
        local_head_size=local if local != whole else 0,
        local_rope_theta=near.theta if near_layers else None,
        local_layers=near_layers,
        window=config["sliding_window"] if near_layers else None,
        layer_signal_size=config["hidden_size_per_layer_input"],
        projections=(Projection(size=config["embedding_dim"], bias=False, activation="identity"),),
    )
    return replace(read, num_key_value_heads=shared)


def _head_sizes(
    config: Mapping[str, Any], layers: int, near_layers: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The size of a head, and the number of key and value heads, of each layer."""
    wider = {name: config[setting] for name, setting in WIDER.items()}
    own = config.get("per_layer_config", {layer: wider for layer in range(layers) if layer not in near_layers}) or {}
    own = {int(layer): settings for layer, settings in own.items()}
    if unknown := sorted({name for settings in own.values() for name in settings} - WIDER.keys()):
        raise UnsupportedModel(f"per_layer_config has {', '.join(unknown)}: {', '.join(WIDER)} are supported")
    found = [{name: own.get(layer, {}).get(name, config[name]) for name in WIDER} for layer in range(layers)]
    return tuple(layer["head_dim"] for layer in found), tuple(layer["num_key_value_heads"] for layer in found)


def _finish_gemma2(state: dict[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Joins factors of sqrt(D); tokens of images and sound get the padding's row, as in the original."""
    factor, name = math.sqrt(config["hidden_size"]), "layer_signals.projection.weight"
    tokens = state[TOKENS] * factor
    for token in (config[name] for name in PLACEHOLDERS):
        if token is not None and token < len(tokens):
            tokens[token] = tokens[config["pad_token_id"]]
    return {**state, TOKENS: tokens, name: state[name] / factor}


GEMMA2 = Family(
    model_types=("embedding_gemma2_text", "embedding_gemma2"),
    settings={
        "vocab_size": 262144,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "sliding_window": 512,
        "sliding_window_pattern": PERIOD,
        "global_head_dim": 512,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 512,
        "embedding_dim": 768,
        "pad_token_id": 0,
        "per_layer_config": REQUIRED,
        **dict.fromkeys(("layer_types", "rope_parameters", *PLACEHOLDERS)),
    },
    prefixes=("model.language_model.", "language_model.", *PREFIXES),
    ignored=("vision_tower.", "embed_vision.", "audio_tower.", "embed_audio."),
    names=GEMMA2_NAMES,
    token_classifier=None,
    read_config=_read_gemma2_config,
    finish=_finish_gemma2,
)
