"""One weight a word: reads SPLADE on `...ForMaskedLM`, alone or as sentence-transformers' SparseEncoder.

Its `Router` reads documents so, and queries by a table that has one weight a word (OpenSearch's inference-free models).

A lower precision is judged by the words that a search would read, and by what texts score with each other.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from export.errors import UnsupportedModel
from export.families.family import require_settings
from export.modules import ROUTER
from export.pipeline import Pipeline
from export.sources import read_json
from export.tasks.definition import Rows, TaskExport, TaskSource, Threshold
from export.tokenizer import read_tokenizer
from export.weights import read_weights
from model.config import EncoderConfig
from model.config_parts import SparseSettings

SATURATIONS: Mapping[str, int] = {"relu": 1, "log1p_relu": 2}
LARGEST_WORDS = 64  # of a text, compared with float32's
BIAS, TABLE = "task_layers.bias", "task_layers.table"
DECODER_BIAS, DECODER = "task_layers.decoder.bias", "task_layers.decoder.weight"


def read(source: TaskSource, config: EncoderConfig) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network with its masked language model's head, and the head's weights; the pooling is SPLADE's maximum."""
    layers, state = source.pick(source.family.masked_lm)
    read_settings = layers.read_settings(source.described)
    has_bias = read_settings.pop("bias", True)
    tied = _tie(state, source)
    state = _with_one_bias(state, has_bias=has_bias, tied=tied)
    folder = source.pipeline.modules.get("SpladePooling")
    said: Mapping[str, Any] = read_json(folder / "config.json") if folder else {}
    require_settings(said, {"pooling_strategy": ("max",), "activation_function": tuple(SATURATIONS)})
    saturations = SATURATIONS[said.get("activation_function", "relu")]
    settings = SparseSettings(bias=has_bias, tied=tied, saturations=saturations, **read_settings)
    return replace(config, task="sparse", task_settings=settings), state


def _with_one_bias(state: Mapping[str, Tensor], *, has_bias: bool, tied: bool) -> dict[str, Tensor]:
    """The bias of the logits: the decoder's, which a tied one shares with its head."""
    found = [state[name] for name in (DECODER_BIAS, BIAS) if name in state]
    if tied and len(found) == 2 and not torch.equal(*found):
        raise UnsupportedModel("the checkpoint holds two biases of its logits, and they differ: which one is right?")
    rest = {name: tensor for name, tensor in state.items() if name not in (BIAS, DECODER_BIAS)}
    return {**rest, BIAS: found[0]} if has_bias and found else rest


def _tie(state: dict[str, Tensor], source: TaskSource) -> bool:
    """Whether the decoder's weights are the token embeddings; takes them out of the state, or gives them our name."""
    decoder = state.pop(DECODER, None)
    is_tied = source.described.get("tie_word_embeddings", True)
    if decoder is None:
        if not is_tied:
            raise UnsupportedModel("tie_word_embeddings is false, and the checkpoint has no weights of the decoder")
        return True
    embeddings = source.family.read_state(source.tensors, source.described)["embeddings.token.weight"]
    if torch.equal(decoder, embeddings):
        return True
    if is_tied:
        raise UnsupportedModel(
            "the decoder's weights differ from the token embeddings, and tie_word_embeddings says they are the same"
        )
    state[TABLE] = decoder
    return False


def read_query_weights(pipeline: Pipeline, vocab_size: int) -> dict[str, NDArray[Any]]:
    """The table by which queries are read, for `FURTHER_OUTPUTS`: a weight a token; empty if the network reads them.

    Raises:
        UnsupportedModel: a table of another form, or with a tokenizer of its own.
    """
    folder = pipeline.modules.get(ROUTER)
    if folder is None:
        return {}
    require_settings(read_json(folder / "config.json"), {"path": (None,)})
    tokenizer = read_tokenizer(folder)
    if tokenizer.to_str() != read_tokenizer(pipeline.transformer).to_str():
        raise UnsupportedModel(f"{folder} reads queries with another tokenizer than documents: one is supported")
    tensors, _ = read_weights(folder, allows_pickles=pipeline.allows_pickles)
    weights = tensors.get("weight")
    if weights is None or len(tensors) > 1 or weights.ndim > 1 or len(weights) > vocab_size:
        raise UnsupportedModel(f"{folder}: expected one tensor, weight, of at most {vocab_size} numbers")
    if max(tokenizer.get_vocab().values()) >= len(weights):
        raise UnsupportedModel(f"{folder} has {len(weights)} weights, fewer than the tokenizer's ids")
    return {"query_weights": weights.float().numpy()}


def measure(found: Rows, expected: Rows) -> dict[str, float]:
    """How far weights are from float32's: which words are the largest, and what texts score with each other.

    `jaccard_mean` and `jaccard_worst` compare a text's 64 largest words; `dot_product_difference` is the largest
    difference of any two texts' dot product, by the largest dot product.
    """
    weights, reference = np.stack(found).astype(np.float64), np.stack(expected).astype(np.float64)  # [N, vocabulary]
    shared = np.array([_jaccard(*pair) for pair in zip(weights, reference, strict=True)])
    products = reference @ reference.T
    difference = np.abs(weights @ weights.T - products).max() / max(float(products.max()), np.finfo(np.float32).tiny)
    return {
        "jaccard_mean": float(shared.mean()),
        "jaccard_worst": float(shared.min()),
        "dot_product_difference": float(difference),
    }


def _jaccard(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Words that both have among their largest, by words that either has; 1 where neither has any."""
    one, other = _largest_words(a), _largest_words(b)
    return len(one & other) / len(one | other) if one | other else 1.0


def _largest_words(weights: NDArray[np.float64]) -> set[int]:
    order = np.argsort(-weights, kind="stable")[:LARGEST_WORDS]
    return {int(word) for word in order if weights[word] > 0}


SPARSE = TaskExport(
    read=read,
    measure=measure,
    thresholds={
        precision: (Threshold("jaccard_mean", least=least), Threshold("dot_product_difference", most=most))
        for precision, least, most in (("fp16", 0.97, 0.01), ("bf16", 0.8, 0.1), ("int8", 0.8, 0.1))
    },
)
