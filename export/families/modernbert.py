"""ModernBERT: norms before, rotary positions, GeGLU, hardly any bias; every third layer sees the whole text.

The others see a window. Global and local layers have rotary bases of their own.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from export.families.bert import read_bert
from export.families.family import (
    ACTIVATIONS,
    ENCODER,
    GLOBAL,
    LOCAL,
    QKV,
    REQUIRED,
    WHOLE_ROTATION,
    Family,
    TaskLayers,
    choose,
    local_layers,
    require_agreement,
)
from export.families.rope import Rope, two_ropes
from model.config import EncoderConfig, Pooling

NAMES: Mapping[str, str | tuple[str, ...]] = {
    "embeddings.tok_embeddings": "embeddings.token",
    "embeddings.norm": "embeddings.norm",
    "layers.{}.attn_norm": "layers.{}.attention_norm",
    "layers.{}.attn.Wqkv": QKV,
    "layers.{}.attn.Wo": "layers.{}.attention.output",
    "layers.{}.mlp_norm": "layers.{}.feed_forward_norm",
    "layers.{}.mlp.Wi": ("layers.{}.feed_forward.gate", "layers.{}.feed_forward.up"),
    "layers.{}.mlp.Wo": "layers.{}.feed_forward.down",
    "final_norm": "final_norm",
}
CLASSIFIER: Mapping[str, str] = {"head.dense": "dense", "head.norm": "norm", "classifier": "output"}


def _read_dense(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the dense layer that both heads begin with."""
    activation = choose(config, "classifier_activation", ACTIVATIONS)
    return {"dense_activation": activation, "dense_bias": config["classifier_bias"]}


def _read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    half = config["sliding_window"]
    if half is None:
        half = config.get("local_attention", 128) // 2
    elif "local_attention" in config:  # one sets the other in its code
        require_agreement({"sliding_window": half, "half of local_attention": config["local_attention"] / 2})
    renamed = {"hidden_act": config["hidden_activation"], "layer_norm_eps": config["norm_eps"], "type_vocab_size": 0}
    read = read_bert({**config, **renamed, "position_embedding_type": "absolute"}, pooling)
    near_layers = _local_layers(config)
    far, near = _ropes(config, near_layers)
    return replace(
        read,
        gated=True,
        **dict.fromkeys(("up_bias", "down_bias"), config["mlp_bias"]),
        **dict.fromkeys(("attention_bias", "output_bias"), config["attention_bias"]),
        norm_bias=config["norm_bias"],
        pre_norm=True,
        first_attention_norm=False,
        final_norm=True,
        positions="none",
        attention_positions="rotary",
        **far.settings(),
        local_rope_theta=near.theta if near_layers else None,
        local_layers=near_layers,
        window=half if near_layers else None,
    )


def _local_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """From `layer_types`, or from the period of older files."""
    layers = range(config["num_hidden_layers"])
    kinds = config.get("layer_types")
    if kinds is None:
        period = config["global_attn_every_n_layers"]
        return tuple(layer for layer in layers if layer % period)
    return local_layers(kinds, len(layers))


def _ropes(config: Mapping[str, Any], near_layers: tuple[int, ...]) -> tuple[Rope, Rope]:
    """Of global and of local layers."""
    bases = {GLOBAL: 160000.0, LOCAL: 10000.0}
    said = {GLOBAL: config.get("global_rope_theta"), LOCAL: config.get("local_rope_theta")}
    if config["rope_parameters"] is None and "local_rope_theta" in config and said[LOCAL] is None:
        said[LOCAL] = said[GLOBAL] or bases[GLOBAL]  # null is the global one
    return two_ropes(config, said, bases, near_layers)


MODERNBERT = Family(
    model_types=("modernbert",),
    settings={
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "local_attention": REQUIRED,
        "sliding_window": None,
        "global_attn_every_n_layers": 3,
        **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), False),
        "decoder_bias": True,
        "classifier_pooling": "cls",
        "classifier_activation": "gelu",
        **dict.fromkeys(("layer_types", "rope_parameters")),
        **dict.fromkeys(("global_rope_theta", "local_rope_theta"), REQUIRED),
        **ENCODER,
    },
    requires={"is_causal": (False, None), "rope_scaling": (None,), **WHOLE_ROTATION},
    unread=(
        *("position_embedding_type", "layer_norm_eps", "hidden_act", "type_vocab_size"),  # words of other families
        *("deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index", "reference_compile"),
        "repad_logits_with_grad",
    ),
    names=NAMES,
    prefixes=("model.",),
    ignored=("head.", "decoder.", "classifier."),
    classifier=TaskLayers(
        CLASSIFIER, lambda config: {**_read_dense(config), "dense_norm": True, "pooling": config["classifier_pooling"]}
    ),
    token_classifier=TaskLayers(CLASSIFIER, lambda config: {**_read_dense(config), "dense_norm": True}),
    masked_lm=TaskLayers(
        {"head.dense": "dense", "head.norm": "norm", "decoder": "decoder"},
        lambda config: {**_read_dense(config), "bias": config["decoder_bias"]},
    ),
    read_config=_read_config,
)
