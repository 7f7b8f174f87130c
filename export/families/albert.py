"""ALBERT: BERT's network behind narrower embeddings, its layers in groups of one weight."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families import bert
from export.families.naming import rename, share_layers
from export.families.task_layers import BIASED, DECODER, DENSE, NORM, OUTPUT, TaskLayers, fixed
from model.config import EncoderConfig, Pooling
from model.config_checks import MOST_LAYERS, require

MODEL_TYPES = ("albert",)

LAYER = re.compile(r"encoder\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.")
NAMES: Mapping[str, str] = {
    **{theirs: ours for theirs, ours in bert.NAMES.items() if theirs.startswith("embeddings.")},
    "encoder.embedding_hidden_mapping_in": "embeddings.to_hidden",
    "layers.{}.attention.query": "layers.{}.attention.query",
    "layers.{}.attention.key": "layers.{}.attention.key",
    "layers.{}.attention.value": "layers.{}.attention.value",
    "layers.{}.attention.dense": "layers.{}.attention.output",
    "layers.{}.attention.LayerNorm": "layers.{}.attention_norm",
    "layers.{}.ffn": "layers.{}.feed_forward.up",
    "layers.{}.ffn_output": "layers.{}.feed_forward.down",
    "layers.{}.full_layer_layer_norm": "layers.{}.feed_forward_norm",
}
PREFIXES = ("albert.", "model.")
IGNORED = ("pooler.", "predictions.", "sop_classifier.", "classifier.", "qa_outputs.", "embeddings.position_ids")
CLASSIFIER = TaskLayers({"pooler": DENSE, "classifier": OUTPUT}, fixed(dense_activation="tanh"))
MASKED_LM = TaskLayers(
    {
        "predictions.dense": DENSE,
        "predictions.LayerNorm": NORM,
        "predictions.decoder": DECODER,
        "predictions": BIASED,
    },
    lambda config: {"dense_activation": bert.ACTIVATIONS[config["hidden_act"]]},
)


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads an ALBERT config.json.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    firsts = _first_layers(config)
    read = bert.read_config({**config, "num_hidden_layers": len(firsts)}, pooling)
    return replace(read, token_size=config["embedding_size"], shared_layers=firsts)


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors and its config.json."""
    places, firsts = _places(config), _first_layers(config)

    def first_layer(found: re.Match[str]) -> str:
        group, inner = map(int, found.groups())
        if (group, inner) not in places:
            raise UnsupportedModel(f"{found.group()} is a layer that no place of the network has")
        return f"layers.{places.index((group, inner))}."

    named = {LAYER.sub(first_layer, name): tensor for name, tensor in tensors.items()}
    return share_layers(rename(named, NAMES, prefixes=PREFIXES, ignored=IGNORED), firsts)


def _places(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Group of weights and layer within it of each layer of the network."""
    layers, groups, inner = (config[name] for name in ("num_hidden_layers", "num_hidden_groups", "inner_group_num"))
    require("num_hidden_layers", layers, minimum=1, maximum=MOST_LAYERS)
    require("num_hidden_groups", groups, minimum=1, maximum=layers)
    require("inner_group_num", inner, minimum=1, maximum=MOST_LAYERS // layers)
    return [(int(layer / (layers / groups)), index) for layer in range(layers) for index in range(inner)]


def _first_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    places = _places(config)
    return tuple(map(places.index, places))
