"""DeBERTa v2 and v3: post-norm layers whose scores have terms of their own for positions (He et al. 2021).

Beside content with content, queries meet a key for their distance, and keys a query for it. The vectors of distances
are projected once, at export, so each layer has a table of keys and one of queries. Versions 2 and 3 are one network;
v3 shares these projections with the content's. deberta-v2-xlarge and -xxlarge have a convolution behind the first
layer (`conv_kernel_size`), which is refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from export.errors import UnsupportedModel
from export.families.bert import BERT_NAMES, CAUSAL, COMMON, read_bert
from export.families.family import ACTIVATIONS, ENCODER_ONLY, Family, TaskLayers, choose
from model.config import EncoderConfig, Pooling, PositionScore
from model.config_parts import LayerActivation

TABLE, NORM = "positions.table.weight", "positions.norm"
NAMES: Mapping[str, str] = {
    **{theirs: ours for theirs, ours in BERT_NAMES.items() if ".self." not in theirs},
    "encoder.layer.{}.attention.self.query_proj": "layers.{}.attention.query",
    "encoder.layer.{}.attention.self.key_proj": "layers.{}.attention.key",
    "encoder.layer.{}.attention.self.value_proj": "layers.{}.attention.value",
    "encoder.layer.{}.attention.self.pos_key_proj": "layers.{}.attention.pos_key_proj",
    "encoder.layer.{}.attention.self.pos_query_proj": "layers.{}.attention.pos_query_proj",
    "encoder.rel_embeddings": "positions.table",
    "encoder.LayerNorm": NORM,
}
TERMS: Mapping[str, PositionScore] = {"c2p": "content_to_position", "p2c": "position_to_content"}
PROJECTIONS = {"c2p": ("pos_key_proj", "key", "position_key"), "p2c": ("pos_query_proj", "query", "position_query")}
POOLER_ACTIVATIONS: Mapping[str, LayerActivation] = {**ACTIVATIONS, "tanh": "tanh"}


def _terms(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The terms of the scores that positions have, in `TERMS`' order."""
    given = config["pos_att_type"] or []
    kinds = [kind.strip() for kind in given.lower().split("|")] if isinstance(given, str) else list(given)
    return tuple(kind for kind in TERMS if kind in kinds)


def _span(config: Mapping[str, Any]) -> int:
    """Distances to one side that have a vector of their own; half of the table's rows."""
    buckets: int = config["position_buckets"]
    return buckets if buckets > 0 else _furthest(config)


def _furthest(config: Mapping[str, Any]) -> int:
    furthest: int = config["max_relative_positions"]
    return config["max_position_embeddings"] if furthest < 1 else furthest


def _read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    read, terms = read_bert(config, pooling), _terms(config)
    read = replace(
        read,
        positions="learned" if config["position_biased_input"] else "none",
        score_scale=(read.d_k * (1 + len(terms))) ** -0.5,
    )
    if not config["relative_attention"] or not terms:
        return read
    return replace(
        read,
        attention_positions="disentangled",
        relative_buckets=2 * _span(config),
        relative_distance=_furthest(config) if config["position_buckets"] > 0 else 0,
        position_scores=tuple(TERMS[kind] for kind in terms),
    )


def _project_distances(state: dict[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Each layer's tables of distances, [H*K, rows], from the shared vectors and the layer's projections."""
    made = {name: tensor for name, tensor in state.items() if not name.startswith("positions.") and "pos_" not in name}
    if not config["position_biased_input"]:
        made.pop("embeddings.position.weight", None)  # which some files hold all the same
    terms = _terms(config) if config["relative_attention"] else ()
    if not terms:
        return made
    vectors = _distances(state, config)
    for layer in range(config["num_hidden_layers"]):
        for kind in terms:
            own, shared, ours = PROJECTIONS[kind]
            name = f"layers.{layer}.attention.{shared if config['share_att_key'] else own}"
            weight, bias = (state[f"{name}.{part}"].double() for part in ("weight", "bias"))
            made[f"layers.{layer}.attention.{ours}.weight"] = (weight @ vectors.T + bias[:, None]).float()
    return made


def _distances(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> Tensor:
    """The vectors of distances, [rows, D] in float64, normed if the network norms them."""
    vectors = state[TABLE].double()
    if len(vectors) != 2 * _span(config):
        raise UnsupportedModel(f"rel_embeddings has {len(vectors)} rows: expected {2 * _span(config)}")
    if "layer_norm" not in [part.strip() for part in config["norm_rel_ebd"].lower().split("|")]:
        return vectors
    weight, bias = (state[f"{NORM}.{part}"].double() for part in ("weight", "bias"))
    return torch.nn.functional.layer_norm(vectors, weight.shape, weight, bias, config["layer_norm_eps"])


DEBERTA = Family(
    model_types=("deberta-v2",),
    settings={
        **COMMON,
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": False,
        "max_relative_positions": -1,
        "position_buckets": -1,
        "position_biased_input": True,
        "share_att_key": False,
        "norm_rel_ebd": "none",
        "pos_att_type": None,
        "pooler_hidden_act": "gelu",
    },
    requires={**CAUSAL, **ENCODER_ONLY, "pruned_heads": (None, {}), "conv_kernel_size": (0,)},
    unread=(
        *("pooler_dropout", "cls_dropout", "legacy", "conv_act", "conv_groups", "position_embedding_type"),
        *("embedding_size", "pooler_hidden_size", "attention_head_size"),  # weights of other sizes do not fit
    ),
    names=NAMES,
    prefixes=("deberta.", "model."),
    ignored=(
        *("pooler.", "cls.", "lm_predictions.", "mask_predictions.", "classifier.", "qa_outputs."),
        "embeddings.position_ids",
    ),
    classifier=TaskLayers(
        {"pooler.dense": "dense", "classifier": "output"},
        lambda config: {"dense_activation": choose(config, "pooler_hidden_act", POOLER_ACTIVATIONS)},
    ),
    read_config=_read_config,
    finish=_project_distances,
)
