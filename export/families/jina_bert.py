"""JinaBERT v2 (jina-embeddings-v2-small-en and -base-en): BERT with ALiBi in both directions and a gated feed-forward.

Its config.json calls it `bert`; what tells it apart is its `position_embedding_type`. The variant with norms on queries
and keys (jina-embeddings-v2-base-code) is refused by its tensors' names.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families import bert
from export.families.naming import rename
from export.families.settings import require_settings
from model.config import EncoderConfig, Pooling

MODEL_TYPES = ("jina_bert",)
REMOTE_CLASSES = ("JinaBert",)

FEED_FORWARDS: Mapping[str, str] = {"geglu": "gelu", "reglu": "relu"}
NAMES: Mapping[str, str | tuple[str, ...]] = {
    **{theirs: ours for theirs, ours in bert.NAMES.items() if ".attention." in theirs or theirs.startswith("emb")},
    "encoder.layer.{}.mlp.gated_layers": ("layers.{}.feed_forward.gate", "layers.{}.feed_forward.up"),
    "encoder.layer.{}.mlp.wo": "layers.{}.feed_forward.down",
    "encoder.layer.{}.mlp.layernorm": "layers.{}.feed_forward_norm",
}


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a JinaBERT v2 config.json.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    require_settings(config, {"position_embedding_type": ("alibi",), "pruned_heads": (None, {})})
    kind = config["feed_forward_type"]
    if kind not in FEED_FORWARDS:
        raise UnsupportedModel(f"feed_forward_type {kind!r}: one of {', '.join(FEED_FORWARDS)} is supported")
    settings = {**config, "position_embedding_type": "absolute", "hidden_act": FEED_FORWARDS[kind]}
    read = bert.read_config(settings, pooling)
    return replace(read, gated=True, up_bias=False, positions="none", attention_positions="alibi")


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors."""
    del config  # names are all there is to change
    return rename(tensors, NAMES, prefixes=bert.PREFIXES, ignored=bert.IGNORED)
