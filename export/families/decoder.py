"""Encoders made from decoders: Llama's layers, causal or not.

Norms before, RMSNorm, rotary positions, a gated feed-forward, keys and values that several query heads read.

Qwen3 (Qwen3-Embedding, Qwen3-Reranker) is causal, with norms on queries and keys. The originals pad at the left;
positions are relative, so padding at the right changes nothing. EuroBERT's layers see the whole text.

Gemma 3's text network (EmbeddingGemma) has norms on both sides of every part. Most layers see a window, with a rotary
base of their own. An RMSNorm's weight is stored less 1, and token embeddings without their factor sqrt(D): both join
the weights.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families.family import (
    DENSE,
    GLOBAL,
    LOCAL,
    OUTPUT,
    QKV,
    REQUIRED,
    Family,
    TaskLayers,
    fixed,
    local_layers,
    positive,
    read_activation,
)
from export.families.rope import Rope, find_rope, two_ropes
from model.config import EncoderConfig, Pooling
from model.config_parts import MOST_LAYERS, require

NAMES: Mapping[str, str] = {
    "embed_tokens": "embeddings.token",
    "layers.{}.input_layernorm": "layers.{}.attention_norm",
    "layers.{}.self_attn.q_proj": QKV[0],
    "layers.{}.self_attn.k_proj": QKV[1],
    "layers.{}.self_attn.v_proj": QKV[2],
    "layers.{}.self_attn.o_proj": "layers.{}.attention.output",
    "layers.{}.self_attn.q_norm": "layers.{}.attention.query_norm",
    "layers.{}.self_attn.k_norm": "layers.{}.attention.key_norm",
    "layers.{}.post_attention_layernorm": "layers.{}.feed_forward_norm",
    "layers.{}.mlp.gate_proj": "layers.{}.feed_forward.gate",
    "layers.{}.mlp.up_proj": "layers.{}.feed_forward.up",
    "layers.{}.mlp.down_proj": "layers.{}.feed_forward.down",
    "norm": "final_norm",
}
PREFIXES = ("model.",)
# As `transformers` 5.23 has them.
SETTINGS: Mapping[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 22016,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "attention_bias": False,
    "rope_theta": REQUIRED,
    **dict.fromkeys(("rope_parameters", "rope_scaling")),
}
WHOLE_ROTATION: Mapping[str, tuple[object, ...]] = {"partial_rotary_factor": (None, 1, 1.0)}


def read_decoder(
    config: Mapping[str, Any], pooling: Pooling, rope: Rope, *, activation: str = "hidden_act", **settings: Any
) -> EncoderConfig:
    """Reads a config.json in the words of Llama.

    Args:
        config: config.json.
        pooling: how tokens become one vector.
        rope: its rotary positions.
        activation: the setting that names the feed-forward's non-linearity.
        settings: the family's own, fields of `EncoderConfig`.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    layers, heads = _count_layers(config), config["num_attention_heads"]
    shared = config.get("num_key_value_heads") or heads
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    has_bias = config.get("attention_bias", False)
    return EncoderConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_heads=(heads,) * layers,
        num_key_value_heads=() if shared == heads else (shared,) * layers,
        d_k=head_size,
        d_v=head_size,
        intermediate_size=config["intermediate_size"],
        max_positions=config["max_position_embeddings"],
        activation=read_activation(config, activation),
        gated=True,
        **{
            "up_bias": False,
            "down_bias": False,
            "attention_bias": has_bias,
            "output_bias": has_bias,
            **settings,
        },
        norm="rms_norm",
        norm_eps=config["rms_norm_eps"],
        pre_norm=True,
        embedding_norm=False,
        final_norm=True,
        positions="none",
        attention_positions="rotary",
        **rope.settings(),
        pooling=pooling,
    )


def _count_layers(config: Mapping[str, Any]) -> int:
    """The number of layers, checked before anything of that size is made."""
    layers: int = config["num_hidden_layers"]
    require("num_hidden_layers", layers, minimum=1, maximum=MOST_LAYERS)
    return layers


def _read_qwen3_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    return _windowed(config, pooling, _qwen3_windowed(config), query_key_norm=True)


def _read_qwen2_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    return _windowed(config, pooling, _qwen3_windowed(config), attention_bias=True, output_bias=False)


def _read_llama_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    has_bias = config["mlp_bias"]
    return _windowed(config, pooling, (), up_bias=has_bias, down_bias=has_bias)


def _read_mistral_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    every = tuple(range(_count_layers(config))) if config["sliding_window"] is not None else ()
    return _windowed(config, pooling, every)


def _windowed(config: Mapping[str, Any], pooling: Pooling, near: tuple[int, ...], **settings: Any) -> EncoderConfig:
    """A network in which `near` are the layers that see a window, causal unless `is_causal` says otherwise."""
    causal = bool(config["is_causal"])
    if near and not causal:
        raise UnsupportedModel("is_causal False with a sliding_window is not supported")
    read = read_decoder(config, pooling, find_rope(config, 10000.0), causal=causal, **settings)
    return replace(read, local_layers=near, window=config["sliding_window"] - 1 if near else None)


def _qwen3_windowed(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers with a window: from `layer_types`, or in older files the last ones."""
    if not config.get("use_sliding_window") or config.get("sliding_window") is None:
        return ()
    layers = _count_layers(config)
    if config.get("layer_types") is None:
        return tuple(range(config["max_window_layers"], layers))
    return local_layers(config["layer_types"], layers)


QWEN3 = Family(
    model_types=("qwen3",),
    settings={
        **SETTINGS,
        "vocab_size": 151936,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "is_causal": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 28,
        "layer_types": None,
    },
    requires=WHOLE_ROTATION,
    names=NAMES,
    prefixes=PREFIXES,
    ignored=("lm_head.", "score.", "rotary_emb."),
    classifier=TaskLayers({"score": OUTPUT}, fixed(dense_activation=None, pooling="last")),
    token_classifier=TaskLayers({"score": OUTPUT}, fixed(dense_activation=None)),
    read_config=_read_qwen3_config,
)


QWEN2 = replace(
    QWEN3,
    model_types=("qwen2",),
    settings={name: value for name, value in QWEN3.settings.items() if name != "attention_bias"} | {"head_dim": None},
    read_config=_read_qwen2_config,
)

LLAMA = replace(
    QWEN3,
    model_types=("llama",),
    settings={
        **SETTINGS,
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "num_key_value_heads": None,
        "head_dim": None,
        "rms_norm_eps": 1e-6,
        "mlp_bias": False,
        "is_causal": True,
    },
    read_config=_read_llama_config,
)

MISTRAL = replace(
    QWEN3,
    model_types=("mistral",),
    settings={
        **{name: value for name, value in SETTINGS.items() if name != "attention_bias"},
        "vocab_size": 32000,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "head_dim": None,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "is_causal": True,
    },
    read_config=_read_mistral_config,
)


EUROBERT_POOLINGS: Mapping[str, Pooling] = {"bos": "cls", "mean": "mean"}


def _read_eurobert_classifier(config: Mapping[str, Any]) -> dict[str, Any]:
    kind = config.get("classifier_pooling", "late")
    if kind not in EUROBERT_POOLINGS:
        raise UnsupportedModel(f"classifier_pooling {kind!r}: one of {', '.join(EUROBERT_POOLINGS)} is supported")
    return {"dense_activation": "gelu", "pooling": EUROBERT_POOLINGS[kind]}


def _read_eurobert_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    has_bias = config.get("mlp_bias", False)
    return read_decoder(config, pooling, find_rope(config, 10000.0), up_bias=has_bias, down_bias=has_bias)


EUROBERT = Family(
    model_types=("eurobert",),
    settings={
        **SETTINGS,
        "vocab_size": 128256,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "max_position_embeddings": 8192,
        **dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 12),
        "num_key_value_heads": None,
        "head_dim": None,
        "rms_norm_eps": 1e-5,
        "mlp_bias": False,
        "classifier_pooling": "late",
    },
    requires={**WHOLE_ROTATION, "is_causal": (False, None)},
    unread=("clf_pooling", "bos_token", "eos_token", "pad_token", "mask_token"),
    names=NAMES,
    prefixes=PREFIXES,
    remote_classes=("EuroBert",),
    ignored=("lm_head.", "dense.", "classifier.", "rotary_emb."),
    classifier=TaskLayers({"dense": DENSE, "classifier": OUTPUT}, _read_eurobert_classifier),
    read_config=_read_eurobert_config,
)


GEMMA3_PERIOD = 6  # of older files: one layer in 6 sees the whole text
GEMMA3_NAMES: Mapping[str, str] = {
    **NAMES,
    "layers.{}.post_attention_layernorm": "layers.{}.attention_output_norm",
    "layers.{}.pre_feedforward_layernorm": "layers.{}.feed_forward_norm",
    "layers.{}.post_feedforward_layernorm": "layers.{}.feed_forward_output_norm",
}
GEMMA3_TOKENS = "embeddings.token.weight"


def _read_gemma3_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    layers = _count_layers(config)
    near_layers = local_layers(config.get("layer_types") or _gemma3_by_period(config), layers)
    far, near = _gemma3_ropes(config)
    if near_layers and (near.divisor, near.scaling) != (far.divisor, far.scaling):
        raise UnsupportedModel("rotary positions of local and global layers are scaled by different factors")
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
        score_scale=positive(config, "query_pre_attn_scalar") ** -0.5,
        local_rope_theta=near.theta if near_layers else None,
        local_layers=near_layers,
        window=(sees - 1 if causal else sees // 2) if near_layers else None,
    )


def _join_factors(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    factor = math.sqrt(config["hidden_size"])
    return {
        name: tensor * factor if name == GEMMA3_TOKENS else tensor + 1 if name.endswith("norm.weight") else tensor
        for name, tensor in state.items()
    }


def _gemma3_by_period(config: Mapping[str, Any]) -> list[str]:
    period = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or GEMMA3_PERIOD
    return [LOCAL if (layer + 1) % period else GLOBAL for layer in range(config["num_hidden_layers"])]


def _gemma3_ropes(config: Mapping[str, Any]) -> tuple[Rope, Rope]:
    """Of global and of local layers."""
    said = {GLOBAL: config["rope_theta"], LOCAL: config["rope_local_base_freq"]}
    return two_ropes(config, said, {GLOBAL: 1e6, LOCAL: 1e4}, scaling=config["rope_scaling"])


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
    ignored=("lm_head.", "rotary_emb."),
    names=GEMMA3_NAMES,
    token_classifier=None,
    read_config=_read_gemma3_config,
    finish=_join_factors,
)
