"""ELECTRA: BERT's network behind embeddings that may be narrower than it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.families import bert, roberta
from export.families.naming import rename
from export.families.task_layers import DECODER, DENSE, NORM, TaskLayers, fixed
from model.config import EncoderConfig, Pooling

MODEL_TYPES = ("electra",)

NAMES: Mapping[str, str] = {**bert.NAMES, "embeddings_project": "embeddings.to_hidden"}
PREFIXES = ("electra.", "model.")
IGNORED = (
    *("discriminator_predictions.", "generator_predictions.", "generator_lm_head.", "classifier.", "qa_outputs."),
    *("sequence_summary.", "embeddings.position_ids"),
)
CLASSIFIER = TaskLayers(roberta.CLASSIFIER.names, fixed(dense_activation="gelu"))
MASKED_LM = TaskLayers(
    {"generator_predictions.dense": DENSE, "generator_predictions.LayerNorm": NORM, "generator_lm_head": DECODER},
    fixed(dense_activation="gelu"),
)


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads an ELECTRA config.json.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    read = bert.read_config(config, pooling)
    width = config["embedding_size"]
    return replace(read, token_size=0 if width == read.hidden_size else width)


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors and its config.json."""
    del config  # names are all there is to change
    return rename(tensors, NAMES, prefixes=PREFIXES, ignored=IGNORED)
