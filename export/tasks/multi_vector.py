"""Reads a network of one vector a token, as sentence-transformers' MultiVectorEncoder stores it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from export.errors import UnsupportedModel
from export.families.settings import require_settings
from export.json_files import read_json
from export.tasks.source import TaskSource
from export.tokenizer import read_tokenizer
from model.config import EncoderConfig
from model.tasks.settings import MultiVectorSettings


def read(source: TaskSource, config: EncoderConfig) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network with its dense layer on tokens, and that layer's weights.

    Raises:
        UnsupportedModel: no such layer, or a setting that is not reproduced.
    """
    pipeline = source.pipeline
    if pipeline.dense is None:
        raise UnsupportedModel(f"task multi_vector needs a Dense module on tokens: {pipeline.found.sign}")
    require_settings(pipeline.around, {"similarity_fn_name": (None, "maxsim")})
    mask = pipeline.modules.get("MultiVectorMask")
    said: Mapping[str, Any] = read_json(mask / "config.json") if mask else {}
    require_settings(said, {"keep_only_token_ids": (None,)})
    settings = MultiVectorSettings(
        size=pipeline.dense.size,
        bias=pipeline.dense.bias,
        dense_activation=pipeline.dense.activation,
        skipped_ids=_skipped_ids(said.get("skiplist_words") or [], read_tokenizer(pipeline.transformer)),
        skipped_in=tuple(said.get("skiplist_tasks", ("document",))),
        query_length=pipeline.settings.get("query_length"),
        document_length=pipeline.settings.get("document_length"),
    )
    state = {f"task_layers.dense.{name}": tensor for name, tensor in pipeline.dense.state.items()}
    return replace(config, task="multi_vector", task_settings=settings), state


def _skipped_ids(words: list[str], tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of the words that are one token each; others are left out, as sentence-transformers does."""
    ids = {tokenizer.token_to_id(word) for word in words}
    return tuple(sorted(index for index in ids if index is not None))
