"""T5's encoder (sentence-t5): bucketed relative positions as the only ones, scores without a scale, no biases."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families import bert
from export.families.naming import rename
from export.families.settings import require_settings
from model.config import EncoderConfig, Pooling
from model.config_checks import MOST_LAYERS, require

MODEL_TYPES = ("t5",)

LONGEST = 512  # tokens it was trained on; its positions are relative, so nothing in the network says
TOKENS = "encoder.embed_tokens.weight"  # a copy of shared.weight, which some files hold too
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
PREFIXES = ("model.",)
IGNORED = ("decoder.", "lm_head.")
REPRODUCED: Mapping[str, tuple[object, ...]] = {"is_decoder": (False,)}


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a T5 config.json.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    require_settings(config, REPRODUCED)
    layers = config["num_layers"]
    require("num_layers", layers, minimum=1, maximum=MOST_LAYERS)  # before a tuple of so many is made
    name = config.get("feed_forward_proj", "relu")
    kind = "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")
    if kind not in bert.ACTIVATIONS:
        raise UnsupportedModel(f"feed_forward_proj {name!r}: one of {', '.join(bert.ACTIVATIONS)}, gated or not, is")
    return EncoderConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["d_model"],
        num_heads=(config["num_heads"],) * layers,
        d_k=config["d_kv"],
        d_v=config["d_kv"],
        intermediate_size=config["d_ff"],
        max_positions=config.get("n_positions", LONGEST),
        activation=bert.ACTIVATIONS[kind],
        gated=name.startswith("gated-"),
        up_bias=False,
        down_bias=False,
        attention_bias=False,
        output_bias=False,
        norm="rms_norm",
        norm_eps=config["layer_norm_epsilon"],
        pre_norm=True,
        embedding_norm=False,
        final_norm=True,
        score_scale=1.0,
        positions="none",
        attention_positions="relative",
        relative_buckets=config["relative_attention_num_buckets"],
        relative_distance=config.get("relative_attention_max_distance", 128),
        pooling=pooling,
    )


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors."""
    del config  # names are all there is to change
    kept = {name: tensor for name, tensor in tensors.items() if name != TOKENS or "shared.weight" not in tensors}
    return rename(kept, NAMES, prefixes=PREFIXES, ignored=IGNORED)
