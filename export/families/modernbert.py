"""ModernBERT: norms before, rotary positions, GeGLU, hardly any bias; every third layer sees the whole text.

The others see a window. Global and local layers have rotary bases of their own.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families import bert
from export.families.naming import QKV, rename
from export.families.rope import Rope, read_rope
from export.families.settings import GLOBAL, LOCAL, local_layers, require_settings
from export.families.task_layers import DECODER, DENSE, NORM, OUTPUT, TaskLayers
from model.config import EncoderConfig, Pooling

MODEL_TYPES = ("modernbert",)

REPRODUCED: Mapping[str, tuple[object, ...]] = {
    "position_embedding_type": ("absolute", "sans_pos", None),  # words that nobody reads; Ettin and mmBERT say sans_pos
    "rope_scaling": (None,),
}
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
PREFIXES = ("model.",)
IGNORED = ("head.", "decoder.", "classifier.")


def _read_dense(config: Mapping[str, Any]) -> dict[str, Any]:
    """The dense layer that both heads begin with."""
    activation = config.get("classifier_activation", "gelu")
    if activation not in bert.ACTIVATIONS:
        raise UnsupportedModel(
            f"classifier_activation {activation!r}: one of {', '.join(bert.ACTIVATIONS)} is supported"
        )
    return {"dense_activation": bert.ACTIVATIONS[activation], "dense_bias": config.get("classifier_bias", False)}


CLASSIFIER = TaskLayers(
    {"head.dense": DENSE, "head.norm": NORM, "classifier": OUTPUT},
    lambda config: {
        **_read_dense(config),
        "dense_norm": True,
        "pooling": config.get("classifier_pooling", "cls"),
    },
)
MASKED_LM = TaskLayers(
    {"head.dense": DENSE, "head.norm": NORM, "decoder": DECODER},
    lambda config: {**_read_dense(config), "bias": config.get("decoder_bias", True)},
)


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a ModernBERT config.json, of `transformers` 5 or older.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    require_settings(config, REPRODUCED)
    renamed = {"hidden_act": config["hidden_activation"], "layer_norm_eps": config["norm_eps"], "type_vocab_size": 0}
    read = bert.read_config({**config, **renamed, "position_embedding_type": "absolute"}, pooling)
    near_layers = _local_layers(config)
    far, near = _ropes(config)
    if near_layers and (far.divisor, far.scaling) != (near.divisor, near.scaling):
        raise UnsupportedModel("rotary positions of local and global layers are scaled by different factors")
    return replace(
        read,
        gated=True,
        up_bias=config["mlp_bias"],
        down_bias=config["mlp_bias"],
        attention_bias=config["attention_bias"],
        output_bias=config["attention_bias"],
        norm_bias=config["norm_bias"],
        pre_norm=True,
        first_attention_norm=False,
        final_norm=True,
        positions="none",
        attention_positions="rotary",
        **far.settings(),
        local_rope_theta=near.theta if near_layers else None,
        local_layers=near_layers,
        window=config["local_attention"] // 2 if near_layers else None,
    )


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors."""
    del config  # names are all there is to change
    return rename(tensors, NAMES, prefixes=PREFIXES, ignored=IGNORED)


def _local_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """From `layer_types`, or from the period of older files."""
    layers = range(config["num_hidden_layers"])
    kinds = config.get("layer_types")
    if kinds is None:
        period = config["global_attn_every_n_layers"]
        return tuple(layer for layer in layers if layer % period)
    return local_layers(kinds, len(layers))


def _ropes(config: Mapping[str, Any]) -> tuple[Rope, Rope]:
    """Of global and of local layers."""
    if (parameters := config.get("rope_parameters")) is None:
        far = read_rope({}, theta=config["global_rope_theta"])
        near = config["local_rope_theta"]  # null for the global one; not said, it would be the original's default
        return far, far if near is None else read_rope({}, theta=near)
    if unknown := sorted(set(parameters) - {GLOBAL, LOCAL}):
        raise UnsupportedModel(f"rope_parameters has {', '.join(unknown)}: {GLOBAL} and {LOCAL} are known")
    return read_rope(parameters[GLOBAL]), read_rope(parameters[LOCAL])
