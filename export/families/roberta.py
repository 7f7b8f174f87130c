"""RoBERTa and its kin: BERT's network with positions counted from the one behind the padding's.

RoBERTa, XLM-RoBERTa (multilingual E5, BGE-M3's dense vector) and CamemBERT count positions from `pad_token_id + 1`. The
rows before that are never read and are left out. A `<pad>` written out in a text counts like any other token here
(`transformers` gives it the padding's position).

MPNet (all-mpnet-base-v2) has T5's bucketed relative positions as well, shared by the layers. Its learned positions
count from 2.

jina-embeddings-v3 has rotary positions instead of learned ones, and adapters (`export.adapters`). config.json comes as
the model's own code writes it, where only its `position_embedding_type` tells it from XLM-RoBERTa, or as `transformers`
does (`jina_embeddings_v3`).

jina-reranker-v2 is XLM-RoBERTa by other names. Its config.json has no `model_type`; the class of its code tells it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.families.bert import BERT_NAMES, BERT_SETTINGS, CAUSAL, COMMON, OUT_PROJ, read_bert
from export.families.family import (
    ENCODER,
    ENCODER_ONLY,
    QKV,
    REQUIRED,
    TRANSFORMERS_LAYER,
    WHOLE_ROTATION,
    Family,
    TaskLayers,
    dense,
)
from export.families.rope import find_rope
from model.config import EncoderConfig, Pooling

ROBERTA_PREFIXES = ("roberta.", "model.")
ROBERTA_CLASSIFIER = TaskLayers(OUT_PROJ, dense("tanh"))
ROBERTA_MASKED_LM = TaskLayers(
    {"lm_head.dense": "dense", "lm_head.layer_norm": "norm", "lm_head.decoder": "decoder", "lm_head": ""}, dense("gelu")
)
POSITIONS, TYPES, TOKENS = tuple(f"embeddings.{table}.weight" for table in ("position", "token_type", "token"))


def _read_roberta_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    read = read_bert(config, pooling)
    types = 0 if read.type_vocab_size == 1 else read.type_vocab_size
    return replace(read, max_positions=read.max_positions - config["pad_token_id"] - 1, type_vocab_size=types)


def _finish_roberta(state: dict[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    state[POSITIONS] = state[POSITIONS][config["pad_token_id"] + 1 :].clone()
    return _join_types(state, POSITIONS) if config["type_vocab_size"] == 1 else state


def _join_types(state: dict[str, Tensor], table: str) -> dict[str, Tensor]:
    """A single token type is a row that every token, or every place, gets."""
    state[table] = state[table] + state.pop(TYPES)
    return state


ROBERTA = Family(
    model_types=("roberta", "xlm-roberta", "camembert"),
    settings={**BERT_SETTINGS, "vocab_size": REQUIRED, "pad_token_id": 1},
    requires=CAUSAL,
    names=BERT_NAMES,
    prefixes=ROBERTA_PREFIXES,
    ignored=("pooler.", "lm_head.", "classifier.", "qa_outputs.", "embeddings.position_ids"),
    classifier=ROBERTA_CLASSIFIER,
    masked_lm=ROBERTA_MASKED_LM,
    read_config=_read_roberta_config,
    finish=_finish_roberta,
)


MPNET_UNREAD_POSITIONS = 2  # its code counts from `padding_idx + 1`, and has 1 for the padding's index in any case
MPNET_BUCKETS, FURTHEST = 32, 128  # written into its code; config.json's number of buckets only sizes the table
MPNET_NAMES: Mapping[str, str] = {
    **{theirs: ours for theirs, ours in BERT_NAMES.items() if ".attention." not in theirs and "_type_" not in theirs},
    "encoder.relative_attention_bias": "positions.bias.buckets",
    "encoder.layer.{}.attention.attn.q": "layers.{}.attention.query",
    "encoder.layer.{}.attention.attn.k": "layers.{}.attention.key",
    "encoder.layer.{}.attention.attn.v": "layers.{}.attention.value",
    "encoder.layer.{}.attention.attn.o": "layers.{}.attention.output",
    "encoder.layer.{}.attention.LayerNorm": "layers.{}.attention_norm",
}


def _read_mpnet_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    read = read_bert({**config, "type_vocab_size": 0}, pooling)
    return replace(
        read,
        max_positions=read.max_positions - MPNET_UNREAD_POSITIONS,
        attention_positions="relative",
        relative_buckets=MPNET_BUCKETS,
        relative_distance=FURTHEST,
    )


MPNET = Family(
    model_types=("mpnet",),
    settings={**COMMON, "vocab_size": 30527, "position_embedding_type": "absolute"},
    requires={**CAUSAL, "relative_attention_num_buckets": (MPNET_BUCKETS,), **ENCODER_ONLY, "pruned_heads": (None, {})},
    unread=("type_vocab_size",),
    names=MPNET_NAMES,
    prefixes=("mpnet.", "model."),
    ignored=("pooler.", "lm_head.", "classifier.", "qa_outputs.", "embeddings.position_ids"),
    read_config=_read_mpnet_config,
    finish=lambda state, _: {**state, POSITIONS: state[POSITIONS][MPNET_UNREAD_POSITIONS:].clone()},
    classifier=ROBERTA_CLASSIFIER,
    masked_lm=ROBERTA_MASKED_LM,
)


FLASH_NAMES: Mapping[str, str | tuple[str, ...]] = {  # of the code of Jina's models
    "embeddings.word_embeddings": "embeddings.token",
    "embeddings.token_type_embeddings": "embeddings.token_type",
    "emb_ln": "embeddings.norm",
    "encoder.layers.{}.mixer.Wqkv": QKV,
    "encoder.layers.{}.mixer.out_proj": "layers.{}.attention.output",
    "encoder.layers.{}.norm1": "layers.{}.attention_norm",
    "encoder.layers.{}.mlp.fc1": "layers.{}.feed_forward.up",
    "encoder.layers.{}.mlp.fc2": "layers.{}.feed_forward.down",
    "encoder.layers.{}.norm2": "layers.{}.feed_forward_norm",
}
JINA_V3_NAMES: Mapping[str, str | tuple[str, ...]] = {
    **FLASH_NAMES,
    "embeddings.LayerNorm": "embeddings.norm",
    **{name: ours for name, ours in TRANSFORMERS_LAYER.items() if ".mlp." not in name},  # as `transformers` names them
    "layers.{}.mlp.fc1": "layers.{}.feed_forward.up",
    "layers.{}.mlp.fc2": "layers.{}.feed_forward.down",
}


def _read_jina_v3_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    read = read_bert({**config, "position_embedding_type": "absolute", "type_vocab_size": 0}, pooling)
    rope = find_rope({**config, "rope_theta": config.get("rotary_emb_base")})
    return replace(read, positions="none", attention_positions="rotary", **rope.settings())


JINA_V3 = Family(
    model_types=("jina_embeddings_v3",),
    settings={
        **dict.fromkeys((*COMMON, "vocab_size"), REQUIRED),
        **dict.fromkeys(("rope_parameters", "rotary_emb_base", "lora_adaptations", "lora_rank", "lora_alpha")),
        **ENCODER,
    },
    requires={
        **CAUSAL,
        "type_vocab_size": (1,),
        "position_embedding_type": ("rotary",),
        "rope_scaling": (None,),
        "truncate_dim": (None,),
        **WHOLE_ROTATION,
    },
    unread=("lora_dropout_p", "lora_main_params_trainable", "load_trained_adapters", "task_instructions"),
    remote_classes=("XLMRoberta",),
    names=JINA_V3_NAMES,
    prefixes=ROBERTA_PREFIXES,
    ignored=("pooler.", "lm_head.", "classifier.", "embeddings.position_ids"),
    read_config=_read_jina_v3_config,
    finish=lambda state, _: _join_types(state, TOKENS),
)


XLM_ROBERTA_FLASH = replace(
    ROBERTA,
    model_types=(),
    settings={
        **ROBERTA.settings,
        **dict.fromkeys(("layer_norm_eps", "max_position_embeddings", "type_vocab_size"), REQUIRED),
    },
    requires={**CAUSAL, "lora_adaptations": (None,), "truncate_dim": (None,), "position_embedding_type": ("absolute",)},
    unread=("lora_rank", "lora_alpha", *JINA_V3.unread),
    remote_classes=JINA_V3.remote_classes,
    names={**FLASH_NAMES, "embeddings.position_embeddings": "embeddings.position"},
    masked_lm=None,
)
