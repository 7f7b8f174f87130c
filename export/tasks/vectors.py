"""One vector a text, or one a token: reads the dense layers behind the network, and judges by the cosine.

BGE-M3 (Chen et al. 2024) has a dense layer in a file of its own, for all tokens but the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from export.errors import UnsupportedModel
from export.late_interaction import INLINE_DENSE, LateInteraction, read_expansion
from export.modules import Dense
from export.pipeline import Pipeline
from export.similarity import row_cosines
from export.sources import COLBERT_LAYER, SPARSE_LAYER, pickles_refused, read_json
from export.tasks.definition import Rows, TaskExport, TaskSource, Threshold
from export.tokenizer import read_tokenizer
from export.weights import read_file
from model.config import EncoderConfig
from model.config_parts import MultiVectorSettings, Projection

SPECIALS = {"cls": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"}  # without a weight in BGE-M3


def _thresholds(mean: float, worst: float) -> tuple[Threshold, ...]:
    return Threshold("cosine_mean", least=mean), Threshold("cosine_worst", least=worst)


def read_embedding(source: TaskSource, config: EncoderConfig) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network with its dense layers after pooling: its own first, then the modules."""
    layers, first = source.pipeline.dense, len(config.projections)
    state = {
        f"task_layers.projections.{index}.{name}": tensor
        for index, dense in enumerate(layers, first)
        for name, tensor in dense.state.items()
    }
    return replace(config, projections=(*config.projections, *(dense.settings for dense in layers))), state


def measure_embedding(found: Rows, expected: Rows) -> dict[str, float]:
    """Cosines of the texts' vectors to float32's, on average and at worst."""
    cosines = row_cosines(np.stack(found), np.stack(expected))
    return {"cosine_mean": float(cosines.mean()), "cosine_worst": float(cosines.min())}


EMBEDDING = TaskExport(
    read=read_embedding,
    measure=measure_embedding,
    thresholds={"fp16": _thresholds(0.9995, 0.9995), **dict.fromkeys(("bf16", "int8"), _thresholds(0.998, 0.99))},
)


def read_multi_vector(source: TaskSource, config: EncoderConfig) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network with its dense layers on tokens, and their weights."""
    pipeline, late = source.pipeline, source.pipeline.late
    layers = list(pipeline.dense)
    if pipeline.inline:
        layers = [_plain_layer({"weight": source.tensors[INLINE_DENSE]})]
    tokenizer = read_tokenizer(pipeline.transformer)
    if not layers and (file := pipeline.transformer / COLBERT_LAYER).is_file():
        if not pipeline.allows_pickles:
            raise pickles_refused(str(pipeline.transformer), file.name)
        layers = [_plain_layer(read_file(file))]
        late = LateInteraction(skiplist_tasks=("query", "document"))
        skipped = tuple(tokenizer.encode("").ids[:1])
    elif layers:  # words of several tokens are not skipped, as in sentence-transformers
        ids = map(tokenizer.token_to_id, late.skiplist_words)
        skipped = tuple(sorted({index for index in ids if index is not None}))
    else:
        raise UnsupportedModel(f"task multi_vector needs a Dense module on tokens: {pipeline.found.sign}")
    *hidden, last = (dense.settings for dense in layers)
    settings = MultiVectorSettings(
        size=last.size,
        bias=last.bias,
        dense_activation=last.activation,
        residual=last.residual,
        hidden_layers=tuple(hidden),
        skipped_ids=skipped,
        skipped_in=late.skiplist_tasks,  # type: ignore[arg-type] # checked there
        query_length=late.query_length,
        document_length=late.document_length,
        query_expansion=read_expansion(late.expansion, tokenizer, pipeline.transformer),
    )
    state = {
        f"task_layers.layers.{index}.{name if name.startswith('residual.') else f'linear.{name}'}": tensor
        for index, dense in enumerate(layers)
        for name, tensor in dense.state.items()
    }
    return replace(config, task="multi_vector", task_settings=settings), state


def _plain_layer(state: Mapping[str, Tensor]) -> Dense:
    return Dense(Projection(size=len(state["weight"]), bias="bias" in state, activation="identity"), state)


def read_token_outputs(pipeline: Pipeline, hidden_size: int) -> dict[str, NDArray[Any]]:
    """BGE-M3's layers on tokens, for `FURTHER_OUTPUTS`; empty if the folder has none, or pickles are not allowed.

    Raises:
        UnsupportedModel: layers of other sizes, which nothing behind this would notice.
    """
    files = [pipeline.transformer / name for name in (SPARSE_LAYER, COLBERT_LAYER)]
    if pipeline.task != "embedding" or not pipeline.allows_pickles or not all(file.is_file() for file in files):
        return {}
    sparse, vectors = (read_file(file) for file in files)
    shapes = [{name: tuple(tensor.shape) for name, tensor in layer.items()} for layer in (sparse, vectors)]
    if shapes != [{"weight": (size, hidden_size), "bias": (size,)} for size in (1, len(vectors.get("bias", ())))]:
        raise UnsupportedModel(f"{SPARSE_LAYER} and {COLBERT_LAYER}: expected layers on {hidden_size} numbers")
    named = read_json(pipeline.transformer / "tokenizer_config.json")
    tokenizer = read_tokenizer(pipeline.transformer)
    specials = [named.get(f"{name}_token") or default for name, default in SPECIALS.items()]
    ids = [tokenizer.token_to_id(token["content"] if isinstance(token, dict) else token) for token in specials]
    return {
        "sparse_weight": sparse["weight"][0].numpy(),
        "sparse_bias": sparse["bias"].numpy(),
        "vector_weight": np.ascontiguousarray(vectors["weight"].numpy().T),
        "vector_bias": vectors["bias"].numpy(),
        "unweighted_ids": np.array(sorted({index for index in ids if index is not None}), np.int64),
    }


def measure_multi_vector(found: Rows, expected: Rows) -> dict[str, float]:
    """Cosines of tokens' vectors to float32's: the mean over all tokens, and the worst text's mean.

    A score adds up a query's best cosines, so a text's mean counts; single tokens are further off than means of them.
    """
    texts = [row_cosines(*pair) for pair in zip(found, expected, strict=True)]
    worst = float(np.min([text.mean() for text in texts]))
    return {"cosine_mean": float(np.concatenate(texts).mean()), "cosine_worst": worst}


MULTI_VECTOR = TaskExport(
    read=read_multi_vector,
    measure=measure_multi_vector,
    thresholds={"fp16": _thresholds(0.9995, 0.9995), **dict.fromkeys(("bf16", "int8"), _thresholds(0.99, 0.98))},
)


def measure_token_outputs(
    layers: Mapping[str, NDArray[Any]], found: Rows, expected: Rows, ids: Sequence[NDArray[np.int64]]
) -> dict[str, float]:
    """How far BGE-M3's further outputs are from float32's: cosines of texts' weights of words, and of tokens' vectors.

    They are made by the layers of `read_token_outputs` from last hidden states [n, H] and tokens [n] of each text.
    """
    known, places = np.unique(np.concatenate(ids), return_inverse=True)
    texts = np.split(places, np.cumsum([len(tokens) for tokens in ids])[:-1])

    def words(hidden: Rows) -> NDArray[np.float32]:
        weights = np.zeros((len(texts), len(known)), np.float32)
        for row, states, tokens in zip(weights, hidden, texts, strict=True):
            np.maximum.at(row, tokens, states @ layers["sparse_weight"] + layers["sparse_bias"])
        weights[:, np.isin(known, layers["unweighted_ids"])] = 0
        return weights

    def vectors(hidden: Rows) -> Rows:
        return [states[1:] @ layers["vector_weight"] + layers["vector_bias"] for states in hidden if len(states) > 1]

    ours, theirs = words(found), words(expected)
    has_words = ours.any(axis=1) | theirs.any(axis=1)
    tokens = measure_multi_vector(vectors(found), vectors(expected))
    figures = {f"multi_vector_{name}": value for name, value in tokens.items()}
    cosines = np.nan_to_num(row_cosines(ours[has_words], theirs[has_words]))  # 0 if only one side has words
    return figures | {"sparse_cosine_mean": float(cosines.mean()) if len(cosines) else 1.0}


TOKEN_OUTPUT_THRESHOLDS: Mapping[str, tuple[Threshold, ...]] = {
    precision: (
        mean._replace(figure="sparse_cosine_mean"),
        mean._replace(figure="multi_vector_cosine_mean"),
        worst._replace(figure="multi_vector_cosine_worst"),
    )
    for precision, (mean, worst) in MULTI_VECTOR.thresholds.items()
}
