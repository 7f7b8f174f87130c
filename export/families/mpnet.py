"""MPNet (all-mpnet-base-v2): BERT's network with T5's bucketed relative positions as well, shared by the layers.

Learned positions count from 2: rows 0 and 1 are never read and are left out. A `<pad>` written out in a text counts
like any other token here (`transformers` gives it the padding's position).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families import bert, roberta
from export.families.naming import rename
from export.families.settings import require_settings
from model.config import EncoderConfig, Pooling

MODEL_TYPES = ("mpnet",)

UNREAD_POSITIONS = (
    2  # its code counts from `padding_idx + 1` and writes the padding's index as 1, whatever config.json says
)
BUCKETS, FURTHEST = 32, 128  # written into its code; config.json's number of buckets only sizes the table
POSITIONS = "embeddings.position.weight"
NAMES: Mapping[str, str] = {
    "embeddings.word_embeddings": "embeddings.token",
    "embeddings.position_embeddings": "embeddings.position",
    "embeddings.LayerNorm": "embeddings.norm",
    "encoder.relative_attention_bias": "positions.bias.buckets",
    "encoder.layer.{}.attention.attn.q": "layers.{}.attention.query",
    "encoder.layer.{}.attention.attn.k": "layers.{}.attention.key",
    "encoder.layer.{}.attention.attn.v": "layers.{}.attention.value",
    "encoder.layer.{}.attention.attn.o": "layers.{}.attention.output",
    "encoder.layer.{}.attention.LayerNorm": "layers.{}.attention_norm",
    "encoder.layer.{}.intermediate.dense": "layers.{}.feed_forward.up",
    "encoder.layer.{}.output.dense": "layers.{}.feed_forward.down",
    "encoder.layer.{}.output.LayerNorm": "layers.{}.feed_forward_norm",
}
PREFIXES = ("mpnet.", "model.")
IGNORED = ("pooler.", "lm_head.", "classifier.", "qa_outputs.", "embeddings.position_ids")
CLASSIFIER, MASKED_LM = roberta.CLASSIFIER, roberta.MASKED_LM


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads an MPNet config.json.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    require_settings(config, {"relative_attention_num_buckets": (BUCKETS,), "pruned_heads": (None, {})})
    read = bert.read_config({**config, "type_vocab_size": 0}, pooling)
    if read.max_positions <= UNREAD_POSITIONS:
        raise UnsupportedModel(f"max_position_embeddings {read.max_positions} leaves none after the 2 unread")
    return replace(
        read,
        max_positions=read.max_positions - UNREAD_POSITIONS,
        attention_positions="relative",
        relative_buckets=BUCKETS,
        relative_distance=FURTHEST,
    )


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors."""
    del config  # names are all there is to change, but for the rows that are not read
    state = rename(tensors, NAMES, prefixes=PREFIXES, ignored=IGNORED)
    if POSITIONS in state:
        state[POSITIONS] = state[POSITIONS][UNREAD_POSITIONS:].clone()
    return state
