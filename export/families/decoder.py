"""What encoders that were made from decoders have in common: the names and settings of Llama's layers.

Norms before, RMSNorm, rotary positions, a gated feed-forward, keys and values that several query heads read.
"""

from collections.abc import Mapping
from typing import Any

from export.errors import UnsupportedModel
from export.families import bert
from export.families.naming import QKV
from export.families.rope import Rope
from model.config import EncoderConfig, Pooling
from model.config_checks import MOST_LAYERS, require

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
    if config[activation] not in bert.ACTIVATIONS:
        raise UnsupportedModel(
            f"{activation} {config[activation]!r}: one of {', '.join(bert.ACTIVATIONS)} is supported"
        )
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    require("num_hidden_layers", layers, minimum=1, maximum=MOST_LAYERS)  # before a tuple of so many is made
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
        activation=bert.ACTIVATIONS[config[activation]],
        gated=True,
        **{"up_bias": False, "down_bias": False, **settings},
        attention_bias=has_bias,
        output_bias=has_bias,
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
