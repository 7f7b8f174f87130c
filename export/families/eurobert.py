"""EuroBERT: Llama's layers that see the whole text."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families.decoder import NAMES, PREFIXES, read_decoder
from export.families.naming import rename
from export.families.rope import find_rope
from export.families.task_layers import DENSE, OUTPUT, TaskLayers
from model.config import EncoderConfig, Pooling

__all__ = ("CLASSIFIER", "MODEL_TYPES", "PREFIXES", "REMOTE_CLASSES", "read_config", "read_state")

MODEL_TYPES = ("eurobert",)
REMOTE_CLASSES = ("EuroBert",)
IGNORED = ("lm_head.", "dense.", "classifier.", "rotary_emb.")
POOLINGS: Mapping[str, Pooling] = {"bos": "cls", "mean": "mean"}


def _read_classifier(config: Mapping[str, Any]) -> dict[str, Any]:
    kind = config.get("classifier_pooling", "late")
    if kind not in POOLINGS:
        raise UnsupportedModel(f"classifier_pooling {kind!r}: one of {', '.join(POOLINGS)} is supported")
    return {"dense_activation": "gelu", "pooling": POOLINGS[kind]}


CLASSIFIER = TaskLayers({"dense": DENSE, "classifier": OUTPUT}, _read_classifier)


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a EuroBERT config.json.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    has_bias = config.get("mlp_bias", False)
    return read_decoder(config, pooling, find_rope(config), up_bias=has_bias, down_bias=has_bias)


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors."""
    del config  # names are all there is to change
    return rename(tensors, NAMES, prefixes=PREFIXES, ignored=IGNORED)
