"""Encoders made from decoders: Llama's layers, causal or not.

Norms before, RMSNorm, rotary positions, a gated feed-forward, keys and values that several query heads read.

Qwen3 (Qwen3-Embedding, Qwen3-Reranker) is causal, with norms on queries and keys. The originals pad at the left;
positions are relative, so padding at the right changes nothing. EuroBERT's layers see the whole text, and so do Qwen3's
and Llama's in code of a model's own: voyage-4-nano, which projects tokens before they are pooled (a mean, or one of
them, may as well be projected itself), and llama-nemotron-embed-1b-v2.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from export.errors import UnsupportedModel
from export.families.family import (
    ACTIVATIONS,
    REQUIRED,
    TRANSFORMERS_LAYER,
    WHOLE_ROTATION,
    Family,
    TaskLayers,
    choose,
    count_layers,
    dense,
    local_layers,
)
from export.families.rope import Rope, find_rope
from model.config import EncoderConfig, Pooling
from model.config_parts import Projection

NAMES: Mapping[str, str] = {
    **{theirs: ours for theirs, ours in TRANSFORMERS_LAYER.items() if theirs.endswith("_proj")},
    "embed_tokens": "embeddings.token",
    "layers.{}.input_layernorm": "layers.{}.attention_norm",
    "layers.{}.self_attn.q_norm": "layers.{}.attention.query_norm",
    "layers.{}.self_attn.k_norm": "layers.{}.attention.key_norm",
    "layers.{}.post_attention_layernorm": "layers.{}.feed_forward_norm",
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
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": None,
    "head_dim": None,
    "rope_theta": REQUIRED,
    **dict.fromkeys(("rope_parameters", "rope_scaling")),
}


def read_decoder(
    config: Mapping[str, Any], pooling: Pooling, rope: Rope, *, activation: str = "hidden_act", **settings: Any
) -> EncoderConfig:
    """Reads a config.json in the words of Llama.

    `activation` is the setting that names the feed-forward's non-linearity; `settings` are the family's own, fields of
    `EncoderConfig`.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    layers, heads = count_layers(config), config["num_attention_heads"]
    shared = config.get("num_key_value_heads") or heads
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    has_bias = config.get("attention_bias", False)
    return EncoderConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_heads=(heads,) * layers,
        num_key_value_heads=() if shared == heads else (shared,) * layers,
        **dict.fromkeys(("d_k", "d_v"), head_size),
        intermediate_size=config["intermediate_size"],
        max_positions=config["max_position_embeddings"],
        activation=choose(config, activation, ACTIVATIONS),
        gated=True,
        **{"up_bias": False, "down_bias": False, "attention_bias": has_bias, "output_bias": has_bias, **settings},
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


def _windowed(config: Mapping[str, Any], pooling: Pooling, near: tuple[int, ...], **settings: Any) -> EncoderConfig:
    """A network in which `near` are the layers that see a window, causal unless `is_causal` says otherwise."""
    causal = bool(config["is_causal"])
    if near and not causal:
        raise UnsupportedModel("is_causal False with a sliding_window is not supported")
    read = read_decoder(config, pooling, find_rope(config, 10000.0), causal=causal, **settings)
    return replace(read, local_layers=near, window=config["sliding_window"] - 1 if near else None)


def _qwen_windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers with a window: from `layer_types`, or in older files the last ones."""
    if not config.get("use_sliding_window") or config["sliding_window"] is None:
        return ()
    layers = count_layers(config)
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
        "is_causal": True,
        "use_sliding_window": False,
        "max_window_layers": 28,
        "sliding_window": REQUIRED,
        "layer_types": None,
    },
    requires={**WHOLE_ROTATION, "use_bidirectional_attention": (False, None)},  # `transformers` reads is_causal
    names=NAMES,
    prefixes=PREFIXES,
    ignored=("lm_head.", "score."),
    classifier=TaskLayers({"score": "output"}, dense(None, pooling="last")),
    token_classifier=TaskLayers({"score": "output"}, dense(None)),
    read_config=lambda config, pooling: _windowed(config, pooling, _qwen_windows(config), query_key_norm=True),
)


QWEN2 = replace(
    QWEN3,
    model_types=("qwen2",),
    settings={name: value for name, value in QWEN3.settings.items() if name != "attention_bias"} | {"head_dim": None},
    read_config=lambda config, pooling: _windowed(
        config, pooling, _qwen_windows(config), attention_bias=True, output_bias=False
    ),
)

LLAMA = replace(
    QWEN3,
    model_types=("llama",),
    settings={
        **SETTINGS,
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
        "is_causal": True,
    },
    read_config=lambda config, pooling: _windowed(
        config, pooling, (), up_bias=config["mlp_bias"], down_bias=config["mlp_bias"]
    ),
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
        "sliding_window": 4096,
        "is_causal": True,
    },
    read_config=lambda config, pooling: _windowed(
        config, pooling, () if config["sliding_window"] is None else tuple(range(count_layers(config)))
    ),
)

SEES_ALL: Mapping[str, tuple[object, ...]] = {"is_causal": (False,), "use_bidirectional_attention": (True,)}


def _read_qwen3_bidirectional(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    projections: tuple[Projection, ...] = ()
    if "num_labels" in config:
        projections = (Projection(size=config["num_labels"], bias=False, activation="identity"),)
        if pooling == "max":
            raise UnsupportedModel("pooling max: tokens are projected first, so mean, cls or last is supported")
    read = QWEN3.read_config({**config, "is_causal": False}, pooling)
    return replace(read, projections=projections)


QWEN3_BIDIRECTIONAL = replace(  # voyage-4-nano; only the name of its code tells it
    QWEN3,
    model_types=(),
    requires={**WHOLE_ROTATION, **SEES_ALL},
    names={**NAMES, "linear": "task_layers.projections.0"},
    remote_classes=("Qwen3Bidirectional",),
    classifier=None,
    token_classifier=None,
    read_config=_read_qwen3_bidirectional,
)

LLAMA_BIDIRECTIONAL = replace(  # llama-nemotron-embed-1b-v2
    LLAMA,
    model_types=("llama_bidirec",),
    requires={**WHOLE_ROTATION, **SEES_ALL, "pooling": ("avg",)},
    unread=("temperature",),
    remote_classes=("LlamaBidirectional",),
    classifier=None,
    token_classifier=None,
    read_config=lambda config, pooling: LLAMA.read_config({**config, "is_causal": False}, pooling),
)

EUROBERT_POOLINGS: Mapping[str, Pooling] = {"bos": "cls", "mean": "mean"}

EUROBERT = Family(
    model_types=("eurobert",),
    settings={
        **SETTINGS,
        "vocab_size": 128256,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "max_position_embeddings": 8192,
        **dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 12),
        "rms_norm_eps": 1e-5,
        "mlp_bias": False,
        "classifier_pooling": "late",
    },
    requires={**WHOLE_ROTATION, "is_causal": (False, None)},
    unread=("clf_pooling", "bos_token", "eos_token", "pad_token", "mask_token"),
    names=NAMES,
    prefixes=PREFIXES,
    remote_classes=("EuroBert",),
    ignored=("lm_head.", "dense.", "classifier."),
    classifier=TaskLayers(
        {"dense": "dense", "classifier": "output"},
        lambda config: {
            "dense_activation": "gelu",
            "pooling": choose(config, "classifier_pooling", EUROBERT_POOLINGS),
        },
    ),
    read_config=lambda config, pooling: read_decoder(
        config, pooling, find_rope(config, 10000.0), up_bias=config["mlp_bias"], down_bias=config["mlp_bias"]
    ),
)

JINA_V5: Mapping[bool, Family] = {  # by `is_decoder`: the models -small and -nano, with adapters
    is_decoder: replace(
        family,
        model_types=("jina_embeddings_v5",),
        unread=(*family.unread, "task_names", "is_decoder"),
        remote_classes=("JinaEmbeddingsV5",),
    )
    for is_decoder, family in {True: QWEN3, False: EUROBERT}.items()
}
