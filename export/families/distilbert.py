"""DistilBERT: BERT's network without token types and without a pooler, under names of its own."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from export.families import bert
from export.families.naming import rename
from export.families.task_layers import DECODER, DENSE, NORM, OUTPUT, TaskLayers, fixed
from model.config import EncoderConfig, Pooling

MODEL_TYPES = ("distilbert",)

NORM_EPS = 1e-12  # written into its code, not into config.json
SETTINGS: Mapping[str, str] = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}
NAMES: Mapping[str, str] = {
    "embeddings.word_embeddings": "embeddings.token",
    "embeddings.position_embeddings": "embeddings.position",
    "embeddings.LayerNorm": "embeddings.norm",
    "transformer.layer.{}.attention.q_lin": "layers.{}.attention.query",
    "transformer.layer.{}.attention.k_lin": "layers.{}.attention.key",
    "transformer.layer.{}.attention.v_lin": "layers.{}.attention.value",
    "transformer.layer.{}.attention.out_lin": "layers.{}.attention.output",
    "transformer.layer.{}.sa_layer_norm": "layers.{}.attention_norm",
    "transformer.layer.{}.ffn.lin1": "layers.{}.feed_forward.up",
    "transformer.layer.{}.ffn.lin2": "layers.{}.feed_forward.down",
    "transformer.layer.{}.output_layer_norm": "layers.{}.feed_forward_norm",
}
PREFIXES = ("distilbert.", "model.")
IGNORED = ("vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "pre_classifier.", "classifier.", "qa_outputs.")
CLASSIFIER = TaskLayers({"pre_classifier": DENSE, "classifier": OUTPUT}, fixed(dense_activation="relu"))
MASKED_LM = TaskLayers(
    {"vocab_transform": DENSE, "vocab_layer_norm": NORM, "vocab_projector": DECODER},
    lambda config: {"dense_activation": bert.ACTIVATIONS[config["activation"]]},
)


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a DistilBERT config.json.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    renamed = {ours: config[theirs] for ours, theirs in SETTINGS.items()}
    settings = {**config, **renamed, "type_vocab_size": 0, "layer_norm_eps": NORM_EPS}
    return bert.read_config(settings, pooling)


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors and its config.json."""
    del config  # names are all there is to change
    return rename(tensors, NAMES, prefixes=PREFIXES, ignored=IGNORED)
