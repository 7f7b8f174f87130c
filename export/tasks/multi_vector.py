"""One vector a token: reads what sentence-transformers' MultiVectorEncoder stores, and judges by the cosine."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from export.errors import UnsupportedModel
from export.families.settings import require_settings
from export.json_files import read_json
from export.similarity import row_cosines
from export.tasks.definition import Rows, TaskExport, Threshold
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
    if len(pipeline.dense) != 1:
        raise UnsupportedModel(f"task multi_vector needs one Dense module on tokens: {pipeline.found.sign}")
    dense = pipeline.dense[0]
    require_settings(pipeline.around, {"similarity_fn_name": (None, "maxsim")})
    mask = pipeline.modules.get("MultiVectorMask")
    said: Mapping[str, Any] = read_json(mask / "config.json") if mask else {}
    require_settings(said, {"keep_only_token_ids": (None,)})
    settings = MultiVectorSettings(
        size=dense.size,
        bias=dense.bias,
        dense_activation=dense.activation,
        skipped_ids=_skipped_ids(said.get("skiplist_words") or [], read_tokenizer(pipeline.transformer)),
        skipped_in=tuple(said.get("skiplist_tasks", ("document",))),
        query_length=pipeline.settings.get("query_length"),
        document_length=pipeline.settings.get("document_length"),
    )
    state = {f"task_layers.dense.{name}": tensor for name, tensor in dense.state.items()}
    return replace(config, task="multi_vector", task_settings=settings), state


def _skipped_ids(words: list[str], tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of the words that are one token each; others are left out, as sentence-transformers does."""
    ids = {tokenizer.token_to_id(word) for word in words}
    return tuple(sorted(index for index in ids if index is not None))


def measure(found: Rows, expected: Rows) -> dict[str, float]:
    """Cosines of tokens' vectors to those of float32: the mean over all tokens, and the worst text's mean.

    A score adds up a query's best cosines, so a text's mean counts; single tokens are further off than means of them.
    """
    texts = [row_cosines(*pair) for pair in zip(found, expected, strict=True)]
    worst = float(np.min([text.mean() for text in texts]))
    return {"cosine_mean": float(np.concatenate(texts).mean()), "cosine_worst": worst}


def _thresholds(mean: float, worst: float) -> tuple[Threshold, ...]:
    return Threshold("cosine_mean", least=mean), Threshold("cosine_worst", least=worst)


MULTI_VECTOR = TaskExport(
    read=read,
    measure=measure,
    thresholds={"fp16": _thresholds(0.9995, 0.9995), "bf16": _thresholds(0.99, 0.98), "int8": _thresholds(0.99, 0.98)},
)
