"""GTE of 2024 and later (gte-base-en-v1.5, gte-multilingual-base): rotary positions, GeGLU, norms after.

config.json comes as the model's own code writes it (model type `new`) or as `transformers` 5 does (`gte`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families import bert
from export.families.naming import QKV, TRANSFORMERS_LAYER, rename
from export.families.rope import Rope, read_rope
from export.families.settings import positive, require_settings
from export.families.task_layers import DECODER, DENSE, NORM, TaskLayers, fixed
from model.config import EncoderConfig, Pooling

MODEL_TYPES = ("new", "gte")
REMOTE_CLASSES = ("New", "Gte")

NAMES: Mapping[str, str | tuple[str, ...]] = {
    "embeddings.word_embeddings": "embeddings.token",
    "embeddings.token_type_embeddings": "embeddings.token_type",
    "embeddings.LayerNorm": "embeddings.norm",
    "encoder.layer.{}.attention.qkv_proj": QKV,
    "encoder.layer.{}.attention.q_proj": QKV[0],
    "encoder.layer.{}.attention.k_proj": QKV[1],
    "encoder.layer.{}.attention.v_proj": QKV[2],
    "encoder.layer.{}.attention.o_proj": "layers.{}.attention.output",
    "encoder.layer.{}.attn_ln": "layers.{}.attention_norm",
    "encoder.layer.{}.mlp.up_gate_proj": ("layers.{}.feed_forward.up", "layers.{}.feed_forward.gate"),
    "encoder.layer.{}.mlp.down_proj": "layers.{}.feed_forward.down",
    "encoder.layer.{}.mlp_ln": "layers.{}.feed_forward_norm",
    **TRANSFORMERS_LAYER,
}
PREFIXES = ("new.", "gte.", "model.")
IGNORED = ("pooler.", "lm_head.", "classifier.", "embeddings.rotary_emb.", "embeddings.position_ids")
CLASSIFIER = bert.CLASSIFIER
MASKED_LM = TaskLayers(
    {"lm_head.dense": DENSE, "lm_head.layer_norm": NORM, "lm_head.norm": NORM, "lm_head.decoder": DECODER},
    fixed(dense_activation="gelu"),
)
REPRODUCED: Mapping[str, tuple[object, ...]] = {
    "layer_norm_type": ("layer_norm",),
    "position_embedding_type": ("rope",),
    "logn_attention_scale": (False,),
    "logn_attention_clip1": (False,),
}


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a GTE config.json, of either model type.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    require_settings(config, REPRODUCED)
    read = bert.read_config({**config, "position_embedding_type": "absolute"}, pooling)
    rope = _read_rope(config, read.d_k)
    return replace(
        read,
        gated=True,
        up_bias=False,
        positions="none",
        attention_positions="rotary",
        **rope.settings(),
    )


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors."""
    del config  # names are all there is to change
    return rename(tensors, NAMES, prefixes=PREFIXES, ignored=IGNORED)


def _read_rope(config: Mapping[str, Any], d_k: int) -> Rope:
    """`rope_parameters`, or `rope_theta` with `rope_scaling`.

    Fixed NTK scaling by a factor f is theta * f, and frequencies divided by f^(2/K) (kexue.fm/archives/9706, equation
    6; so that the lowest frequency is divided by f, and the highest hardly changes).
    """
    if config.get("rope_parameters") is not None:
        return read_rope(config["rope_parameters"], positions=config["max_position_embeddings"])
    theta, scaling = positive(config, "rope_theta"), config.get("rope_scaling")
    if scaling is None:
        return Rope(theta)
    if set(scaling) - {"type", "factor", "mixed_b"} or scaling.get("type") != "ntk" or scaling.get("mixed_b"):
        raise UnsupportedModel(f"rope_scaling {scaling}: none, or type ntk with a factor, is supported")
    factor = positive(scaling, "factor")
    return Rope(theta * factor, factor ** (2 / d_k))
