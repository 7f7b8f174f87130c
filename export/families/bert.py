"""BERT and its kin: post-norm, learned absolute positions.

BERT (MiniLM, BGE, E5, GTE) has token types. ERNIE (text2vec-base-chinese-paraphrase) has types of tasks besides, and
each token that of the first. DistilBERT has none, no pooler, and names of its own. ELECTRA's embeddings may be
narrower than the network. ALBERT's are, and its layers stand in groups of one weight.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families.family import (
    ACTIVATIONS,
    ENCODER,
    ENCODER_ONLY,
    QKV,
    Family,
    TaskLayers,
    choose,
    count_layers,
    dense,
    dense_said,
    require_settings,
    share_layers,
)
from model.config import EncoderConfig, Pooling
from model.config_parts import MOST_LAYERS, require

BERT_NAMES: Mapping[str, str] = {
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
# As `transformers` 5.23 has them.
COMMON: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
}
BERT_SETTINGS: Mapping[str, Any] = {
    **COMMON,
    "vocab_size": 30522,
    "type_vocab_size": 2,
    **ENCODER,
    "position_embedding_type": "absolute",
}
CAUSAL: Mapping[str, tuple[object, ...]] = {"is_causal": (False, None)}  # no part of these networks is
BERT_PREFIXES = ("bert.", "model.")
BERT_IGNORED = ("pooler.", "cls.", "classifier.", "qa_outputs.", "embeddings.position_ids")
OUT_PROJ: Mapping[str, str] = {"classifier.dense": "dense", "classifier.out_proj": "output"}  # of ELECTRA and RoBERTa


BERT_CLASSIFIER = TaskLayers({"pooler.dense": "dense", "classifier": "output"}, dense("tanh"))
BERT_MASKED_LM = TaskLayers(
    {
        "cls.predictions.transform.dense": "dense",
        "cls.predictions.transform.LayerNorm": "norm",
        "cls.predictions.decoder": "decoder",
        "cls.predictions": "",
    },
    dense_said("hidden_act"),
)


def read_bert(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a config.json in the words of BERT.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    require_settings(config, {"position_embedding_type": ("absolute", None), **ENCODER_ONLY})
    heads = config["num_attention_heads"]
    if config["hidden_size"] % heads:
        raise UnsupportedModel(f"hidden_size {config['hidden_size']} is not a multiple of {heads} heads")
    pruned, head_size = config.get("pruned_heads") or {}, config["hidden_size"] // heads
    return EncoderConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_heads=tuple(heads - len(pruned.get(str(layer), ())) for layer in range(count_layers(config))),
        d_k=head_size,
        d_v=head_size,
        intermediate_size=config["intermediate_size"],
        max_positions=config["max_position_embeddings"],
        type_vocab_size=config["type_vocab_size"],
        activation=choose(config, "hidden_act", ACTIVATIONS),
        norm_eps=config["layer_norm_eps"],
        pooling=pooling,
    )


BERT = Family(
    model_types=("bert",),
    settings=BERT_SETTINGS,
    requires=CAUSAL,
    names=BERT_NAMES,
    prefixes=BERT_PREFIXES,
    ignored=BERT_IGNORED,
    classifier=BERT_CLASSIFIER,
    masked_lm=BERT_MASKED_LM,
    read_config=read_bert,
)


TASK_TYPES, POSITIONS = "embeddings.task_type.weight", "embeddings.position.weight"


def _finish_ernie(state: dict[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Adds the row of the first task, which every token gets, to each position's."""
    tasks = state.pop(TASK_TYPES, None)
    if config["use_task_id"]:
        if tasks is None:
            raise KeyError(TASK_TYPES)
        state[POSITIONS] = state[POSITIONS] + tasks[0]
    return state


ERNIE = replace(
    BERT,
    model_types=("ernie",),
    settings={**BERT_SETTINGS, "use_task_id": False},
    unread=("task_type_vocab_size",),  # the table is stored
    names={**BERT_NAMES, "embeddings.task_type_embeddings": "embeddings.task_type"},
    prefixes=("ernie.", "model."),
    finish=_finish_ernie,
)


DISTILBERT_NAMES: Mapping[str, str] = {
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


def _read_distilbert_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    named = {"intermediate_size": config["hidden_dim"], "hidden_act": config["activation"]}  # its code reads no others
    return read_bert({**config, **named, "type_vocab_size": 0, "layer_norm_eps": 1e-12}, pooling)  # as in its code


DISTILBERT = Family(
    model_types=("distilbert",),
    settings={
        "hidden_size": 768,
        "num_attention_heads": 12,
        "num_hidden_layers": 6,
        "hidden_dim": 3072,
        "activation": "gelu",
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "pruned_heads": None,
        "position_embedding_type": "absolute",
    },
    requires={**CAUSAL, **ENCODER_ONLY},
    # The last only makes the table, which is stored.
    unread=("qa_dropout", "tie_weights_", "seq_classif_dropout", "sinusoidal_pos_embds"),
    aliases={"dim": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"},
    names=DISTILBERT_NAMES,
    prefixes=("distilbert.", "model."),
    ignored=(
        *("vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "pre_classifier.", "classifier."),
        "qa_outputs.",
    ),
    classifier=TaskLayers({"pre_classifier": "dense", "classifier": "output"}, dense("relu")),
    masked_lm=TaskLayers(
        {"vocab_transform": "dense", "vocab_layer_norm": "norm", "vocab_projector": "decoder"}, dense_said("activation")
    ),
    read_config=_read_distilbert_config,
)


ELECTRA = Family(
    model_types=("electra",),
    settings={
        **BERT_SETTINGS,
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    requires=CAUSAL,
    names={**BERT_NAMES, "embeddings_project": "embeddings.to_hidden"},
    prefixes=("electra.", "model."),
    ignored=(
        *("discriminator_predictions.", "generator_predictions.", "generator_lm_head.", "classifier.", "qa_outputs."),
        *("sequence_summary.", "embeddings.position_ids"),
    ),
    classifier=TaskLayers(OUT_PROJ, dense("gelu")),
    masked_lm=TaskLayers(
        {
            "generator_predictions.dense": "dense",
            "generator_predictions.LayerNorm": "norm",
            "generator_lm_head": "decoder",
        },
        dense("gelu"),
    ),
    read_config=lambda config, pooling: replace(
        read_bert(config, pooling),
        token_size=0 if config["embedding_size"] == config["hidden_size"] else config["embedding_size"],
    ),
)


ALBERT_LAYER = re.compile(r"encoder\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.")
ALBERT_NAMES: Mapping[str, str] = {
    **{theirs: ours for theirs, ours in BERT_NAMES.items() if theirs.startswith("embeddings.")},
    "encoder.embedding_hidden_mapping_in": "embeddings.to_hidden",
    **dict(zip(QKV, QKV, strict=True)),
    "layers.{}.attention.dense": "layers.{}.attention.output",
    "layers.{}.attention.LayerNorm": "layers.{}.attention_norm",
    "layers.{}.ffn": "layers.{}.feed_forward.up",
    "layers.{}.ffn_output": "layers.{}.feed_forward.down",
    "layers.{}.full_layer_layer_norm": "layers.{}.feed_forward_norm",
}


def _read_albert_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    firsts = _albert_first_layers(config)
    read = read_bert({**config, "num_hidden_layers": len(firsts)}, pooling)
    return replace(read, token_size=config["embedding_size"], shared_layers=firsts)


def _name_albert_layers(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Groups of weights under the number of the first layer that has them."""
    places = _albert_places(config)

    def first_layer(found: re.Match[str]) -> str:
        group, inner = map(int, found.groups())
        if (group, inner) not in places:
            raise UnsupportedModel(f"{found.group()} is a layer that no place of the network has")
        return f"layers.{places.index((group, inner))}."

    return {ALBERT_LAYER.sub(first_layer, name): tensor for name, tensor in tensors.items()}


def _albert_places(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Group of weights and layer within it of each layer of the network."""
    layers, groups, inner = count_layers(config), config["num_hidden_groups"], config["inner_group_num"]
    require("num_hidden_groups", groups, minimum=1, maximum=layers)
    require("inner_group_num", inner, minimum=1, maximum=MOST_LAYERS // layers)
    return [(int(layer / (layers / groups)), index) for layer in range(layers) for index in range(inner)]


def _albert_first_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    places = _albert_places(config)
    return tuple(map(places.index, places))


ALBERT = Family(
    model_types=("albert",),
    settings={
        **BERT_SETTINGS,
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "num_hidden_groups": 1,
        "inner_group_num": 1,
    },
    requires=CAUSAL,
    unread=("classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"),
    names=ALBERT_NAMES,
    prefixes=("albert.", "model."),
    ignored=("pooler.", "predictions.", "sop_classifier.", "classifier.", "qa_outputs.", "embeddings.position_ids"),
    classifier=TaskLayers({"pooler": "dense", "classifier": "output"}, dense("tanh")),
    masked_lm=TaskLayers(
        {theirs.removeprefix("cls.").replace("transform.", ""): ours for theirs, ours in BERT_MASKED_LM.names.items()},
        dense_said("hidden_act"),
    ),
    read_config=_read_albert_config,
    prepare=_name_albert_layers,
    finish=lambda state, config: share_layers(state, _albert_first_layers(config)),
)
