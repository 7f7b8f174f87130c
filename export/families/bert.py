"""BERT and its kin: BERT, MiniLM, BGE, E5, GTE. Post-norm, learned absolute positions, token types."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families.naming import rename
from export.families.task_layers import BIASED, DECODER, DENSE, NORM, OUTPUT, TaskLayers, fixed
from model.config import Activation, EncoderConfig, Pooling
from model.config_checks import MOST_LAYERS, require

MODEL_TYPES = ("bert",)

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
NAMES: Mapping[str, str] = {
    "embeddings.word_embeddings": "embeddings.token",
    "embeddings.position_embeddings": "embeddings.position",
    "embeddings.token_type_embeddings": "embeddings.token_type",
    "embeddings.LayerNorm": "embeddings.norm",
    "encoder.layer.{}.attention.self.query": "layers.{}.attention.query",
    "encoder.layer.{}.attention.self.key": "layers.{}.attention.key",
    "encoder.layer.{}.attention.self.value": "layers.{}.attention.value",
    "encoder.layer.{}.attention.output.dense": "layers.{}.attention.output",
    "encoder.layer.{}.attention.output.LayerNorm": "layers.{}.attention_norm",
    "encoder.layer.{}.intermediate.dense": "layers.{}.feed_forward.up",
    "encoder.layer.{}.output.dense": "layers.{}.feed_forward.down",
    "encoder.layer.{}.output.LayerNorm": "layers.{}.feed_forward_norm",
}
PREFIXES = ("bert.", "model.")
IGNORED = ("pooler.", "cls.", "classifier.", "qa_outputs.", "embeddings.position_ids")

CLASSIFIER = TaskLayers({"pooler.dense": DENSE, "classifier": OUTPUT}, fixed(dense_activation="tanh"))
MASKED_LM = TaskLayers(
    {
        "cls.predictions.transform.dense": DENSE,
        "cls.predictions.transform.LayerNorm": NORM,
        "cls.predictions.decoder": DECODER,
        "cls.predictions": BIASED,
    },
    lambda config: {"dense_activation": ACTIVATIONS[config["hidden_act"]]},
)


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a BERT config.json.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise UnsupportedModel(f"position_embedding_type {config['position_embedding_type']!r}: absolute is supported")
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise UnsupportedModel("a decoder is no encoder: is_decoder and add_cross_attention must be false")
    if config["hidden_act"] not in ACTIVATIONS:
        raise UnsupportedModel(f"hidden_act {config['hidden_act']!r}: one of {', '.join(ACTIVATIONS)} is supported")
    heads = config["num_attention_heads"]
    if config["hidden_size"] % heads:
        raise UnsupportedModel(f"hidden_size {config['hidden_size']} is not a multiple of {heads} heads")
    layers = config["num_hidden_layers"]
    require("num_hidden_layers", layers, minimum=1, maximum=MOST_LAYERS)  # before a tuple of so many is made
    pruned = config.get("pruned_heads") or {}
    head_size = config["hidden_size"] // heads
    return EncoderConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_heads=tuple(heads - len(pruned.get(str(layer), ())) for layer in range(layers)),
        d_k=head_size,
        d_v=head_size,
        intermediate_size=config["intermediate_size"],
        max_positions=config["max_position_embeddings"],
        type_vocab_size=config["type_vocab_size"],
        activation=ACTIVATIONS[config["hidden_act"]],
        norm_eps=config["layer_norm_eps"],
        pooling=pooling,
    )


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors and its config.json."""
    del config  # names are all there is to change
    return rename(tensors, NAMES, prefixes=PREFIXES, ignored=IGNORED)
