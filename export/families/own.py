"""Networks that `transformers` does not know: tables of vectors, and this project's own.

Tables of vectors (sentence-transformers' StaticEmbedding: potion, static-retrieval): a text's is its tokens' mean.

A table is a network of one layer without heads that adds 0, so that everything behind it needs nothing of its own.
Files are sentence-transformers' or model2vec's, in which tokens may share a row and have weights. No special tokens are
put around a text.

The project's own networks have `model_type` polyhead; everything else in config.json has the names of `model.config`,
as `EncoderConfig.to_dict` gives them, and the tensors are the encoder's state.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from export.errors import UnsupportedModel
from export.families.family import REQUIRED, Family, share_layers
from export.tokenizer import load_tokenizer, refuse_failing
from model.config import EncoderConfig, Pooling

KIND = "static_table"
LONGEST = 8192  # tokens of a text; the original has no limit
TABLE = "embeddings.token.weight"


def describe_table(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What a config.json would say, from the weights and tokenizer.json."""
    table = _table(tensors)
    cut = {"max_length": LONGEST, "direction": "right", **(load_tokenizer(folder / "tokenizer.json").truncation or {})}
    if cut["direction"] != "right":
        raise UnsupportedModel(f"{folder}: tokenizer.json cuts long texts at the left, and here they are at the right")
    longest = min(cut["max_length"], LONGEST)
    sizes = {"vocab_size": len(table), "hidden_size": table.shape[1], "max_position_embeddings": longest}
    return {"model_type": KIND, **sizes}


def plain_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of tokenizer.json, which puts nothing around a text.

    Raises:
        SourceError: it fails on some texts.
    """
    described = json.loads((folder / "tokenizer.json").read_bytes())
    made = Tokenizer.from_str(json.dumps({**described, "post_processor": None, "truncation": None, "padding": None}))
    refuse_failing(made, folder)
    return made


def _table(tensors: Mapping[str, Tensor]) -> Tensor:
    """A row a token."""
    table = tensors["embedding.weight"] if "embedding.weight" in tensors else tensors.get("embeddings")
    if table is None or table.ndim != 2 or not table.is_floating_point():
        raise UnsupportedModel("a table of vectors needs a tensor embedding.weight, or embeddings, of numbers")
    if "mapping" in tensors:
        table = table[tensors["mapping"].long()]
    return table * tensors["weights"][:, None] if "weights" in tensors else table


def _read_table(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    absent = ("up_bias", "down_bias", "output_bias", "embedding_norm", "first_attention_norm")
    sizes: dict[str, Any] = dict.fromkeys(("d_k", "d_v", "intermediate_size"), 1)
    return EncoderConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_heads=(0,),
        **(sizes | dict.fromkeys(absent, False)),
        max_positions=config["max_position_embeddings"],
        norm="rms_norm",
        pre_norm=True,
        positions="none",
        pooling=pooling,
    )


def _with_zeros(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    size = config["hidden_size"]
    return {
        TABLE: _table(tensors),
        "layers.0.attention.output_bias": torch.zeros(size),
        "layers.0.feed_forward.up.weight": torch.zeros(1, size),
        "layers.0.feed_forward.down.weight": torch.zeros(size, 1),
        "layers.0.feed_forward_norm.weight": torch.ones(size),
    }


STATIC = Family(
    model_types=(KIND,),
    settings=dict.fromkeys(("vocab_size", "hidden_size", "max_position_embeddings"), REQUIRED),
    token_classifier=None,
    read_config=_read_table,
    prepare=_with_zeros,
)


BESIDE = ("model_type", "removed", "examples")  # keys of config.json that are no field of `EncoderConfig`


def _read_polyhead_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    named = {name: value for name, value in config.items() if name not in BESIDE}
    return EncoderConfig.from_dict({"pooling": pooling, **named})


POLYHEAD = Family(
    model_types=("polyhead",),
    settings={},  # `EncoderConfig` knows its fields
    read_config=_read_polyhead_config,
    finish=lambda state, config: share_layers(state, config.get("shared_layers", ())),
)
