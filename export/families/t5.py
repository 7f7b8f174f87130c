"""T5's encoder (sentence-t5): bucketed relative positions as the only ones, scores without a scale, no biases."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from export.families.family import ACTIVATIONS, Family, choose, count_layers, require_settings
from model.config import EncoderConfig, Pooling

LONGEST = 512  # tokens it was trained on; its positions are relative, so nothing in the network says
COPY = "encoder.embed_tokens.weight"  # a copy of shared.weight, which some files hold too
NAMES: Mapping[str, str] = {
    "shared": "embeddings.token",
    "encoder.embed_tokens": "embeddings.token",
    "encoder.block.0.layer.0.SelfAttention.relative_attention_bias": "positions.bias.buckets",
    "encoder.block.{}.layer.0.SelfAttention.q": "layers.{}.attention.query",
    "encoder.block.{}.layer.0.SelfAttention.k": "layers.{}.attention.key",
    "encoder.block.{}.layer.0.SelfAttention.v": "layers.{}.attention.value",
    "encoder.block.{}.layer.0.SelfAttention.o": "layers.{}.attention.output",
    "encoder.block.{}.layer.0.layer_norm": "layers.{}.attention_norm",
    "encoder.block.{}.layer.1.DenseReluDense.wi": "layers.{}.feed_forward.up",
    "encoder.block.{}.layer.1.DenseReluDense.wi_0": "layers.{}.feed_forward.gate",
    "encoder.block.{}.layer.1.DenseReluDense.wi_1": "layers.{}.feed_forward.up",
    "encoder.block.{}.layer.1.DenseReluDense.wo": "layers.{}.feed_forward.down",
    "encoder.block.{}.layer.1.layer_norm": "layers.{}.feed_forward_norm",
    "encoder.final_layer_norm": "final_norm",
}


def _read_t5_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    name = config.get("feed_forward_proj", "relu")
    kind = "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")
    activation, gated = choose({"feed_forward_proj": kind}, "feed_forward_proj", ACTIVATIONS), name.startswith("gated-")
    # Two more settings say the same; the original computes with them.
    require_settings(config, {"dense_act_fn": (kind,), "is_gated_act": (gated,)})
    absent = ("up_bias", "down_bias", "attention_bias", "output_bias", "embedding_norm")
    none: dict[str, Any] = dict.fromkeys(absent, False)
    return EncoderConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["d_model"],
        num_heads=(config["num_heads"],) * count_layers(config, "num_layers"),
        d_k=config["d_kv"],
        d_v=config["d_kv"],
        intermediate_size=config["d_ff"],
        max_positions=config.get("n_positions", LONGEST),
        activation=activation,
        gated=gated,
        **none,
        norm="rms_norm",
        norm_eps=config["layer_norm_epsilon"],
        pre_norm=True,
        final_norm=True,
        score_scale=1.0,
        positions="none",
        attention_positions="relative",
        relative_buckets=config["relative_attention_num_buckets"],
        relative_distance=config.get("relative_attention_max_distance", 128),
        pooling=pooling,
    )


def _without_copies(tensors: Mapping[str, Tensor], _: Mapping[str, Any]) -> dict[str, Tensor]:
    has_shared = any(name.endswith("shared.weight") for name in tensors)
    return {name: tensor for name, tensor in tensors.items() if not (has_shared and name.endswith(COPY))}


T5 = Family(
    model_types=("t5",),
    settings={
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_heads": 8,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "n_positions": LONGEST,
    },
    requires={"is_decoder": (False,), "is_causal": (False, None)},
    unread=("num_decoder_layers", "scale_decoder_outputs", "dense_act_fn", "is_gated_act"),
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    },
    names=NAMES,
    prefixes=("model.", "transformer."),
    ignored=("decoder.", "lm_head.", "classifier."),
    prepare=_without_copies,
    read_config=_read_t5_config,
)
