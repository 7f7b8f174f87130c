"""RoBERTa and its kin: RoBERTa, XLM-RoBERTa (multilingual E5, BGE-M3's dense vector), CamemBERT.

BERT's network with its positions counted from `pad_token_id + 1`. The rows before that are never read and are left
out; a single token type is one row that every token gets, so it joins the positions. A `<pad>` written out in a text
counts like any other token here (`transformers` gives it the padding's position).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families import bert
from export.families.naming import rename
from export.families.task_layers import BIASED, DECODER, DENSE, NORM, OUTPUT, TaskLayers, fixed
from model.config import EncoderConfig, Pooling

MODEL_TYPES = ("roberta", "xlm-roberta", "camembert")

PREFIXES = ("roberta.", "model.")
IGNORED = ("pooler.", "lm_head.", "classifier.", "qa_outputs.", "embeddings.position_ids")
CLASSIFIER = TaskLayers({"classifier.dense": DENSE, "classifier.out_proj": OUTPUT}, fixed(dense_activation="tanh"))
MASKED_LM = TaskLayers(
    {"lm_head.dense": DENSE, "lm_head.layer_norm": NORM, "lm_head.decoder": DECODER, "lm_head": BIASED},
    fixed(dense_activation="gelu"),
)
POSITIONS, TYPES = "embeddings.position.weight", "embeddings.token_type.weight"


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a RoBERTa config.json.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    read = bert.read_config(config, pooling)
    unread = _unread_positions(config)
    if unread >= read.max_positions:
        raise UnsupportedModel(f"max_position_embeddings {read.max_positions} leaves none after the {unread} unread")
    types = 0 if read.type_vocab_size == 1 else read.type_vocab_size
    return replace(read, max_positions=read.max_positions - unread, type_vocab_size=types)


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors and its config.json.

    Raises:
        UnsupportedModel: a tensor of an unknown part, or a missing one that would join another.
    """
    state = rename(tensors, bert.NAMES, prefixes=PREFIXES, ignored=IGNORED)
    if POSITIONS in state:
        state[POSITIONS] = state[POSITIONS][_unread_positions(config) :].clone()
    if config["type_vocab_size"] == 1 and POSITIONS in state:
        if TYPES not in state:
            raise UnsupportedModel("the checkpoint has no vector of a single token type: token_type_embeddings.weight")
        state[POSITIONS] += state.pop(TYPES)
    return state


def _unread_positions(config: Mapping[str, Any]) -> int:
    """Rows before the first token's: those up to the padding's own."""
    padding = config["pad_token_id"]
    if isinstance(padding, bool) or not isinstance(padding, int) or padding < 0:
        raise UnsupportedModel(f"pad_token_id {padding!r}: positions are counted from the whole number after it")
    return padding + 1
