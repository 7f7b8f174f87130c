"""JinaBERT v2 written out from its publications: numpy, float64, one text, one head and one pair of tokens at a time.

A config.json whose `auto_map` names jina-bert-v2-qk-post-norm is the variant of jina-embeddings-v2-base-code, as
text-embeddings-inference computes it (`jina_code.rs`): LayerNorms over all queries and over all keys, and after
attention a second sum and norm.

`transformers` has no such network; its own code is remote code, which nothing here runs. Sources: Günther et al. 2023,
"Jina Embeddings 2" (section 3: ALiBi in both directions, GLU feed-forward, norms after), Press et al. 2022 (section 3,
the slopes), Shazeer 2020 (GEGLU, ReGLU), and the tensor names that its published checkpoints carry.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import erf

from model.encoder import Encoder

Array = NDArray[np.float64]
TOLERANCE = 1e-5
SLOPES: Mapping[int, list[float]] = {
    2: [2**-4, 2**-8],
    3: [2**-4, 2**-8, 2**-2],
    4: [2**-2, 2**-4, 2**-6, 2**-8],
    12: [*(2.0**-n for n in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
}
"""By number of heads, as the paper's rule gives them; past a power of two every other slope of twice as many."""

JINA_BERT_PARTS = "gated_layers", "wo", "mlp.layernorm"


def is_normed(config: Mapping[str, Any]) -> bool:
    """Whether it is the variant with more norms."""
    return "qk-post-norm" in str(config.get("auto_map"))


def draw_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """A checkpoint's tensors, drawn."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
        **_norm("embeddings.LayerNorm", width),
    }
    if config["architectures"][0].endswith("ForSequenceClassification"):
        labels = len(config["id2label"])
        shapes |= {"pooler.dense.weight": (width, width), "pooler.dense.bias": (width,)}
        shapes |= {"classifier.weight": (labels, width), "classifier.bias": (labels,)}
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= {f"{name}.attention.{part}.weight": (width, width), f"{name}.attention.{part}.bias": (width,)}
        norms, gated, down = ["attention.output.LayerNorm", "mlp.layernorm"], "mlp.gated_layers", "mlp.wo"
        if is_normed(config):
            norms[1:] = ["layer_norm_1", "layer_norm_2", *(f"attention.self.layer_norm_{part}" for part in "qk")]
            gated, down = "mlp.up_gated_layer", "mlp.down_layer"
        for norm in norms:
            shapes |= _norm(f"{name}.{norm}", width)
        shapes |= {
            f"{name}.{gated}.weight": (2 * inner, width),
            f"{name}.{down}.weight": (width, inner),
            f"{name}.{down}.bias": (width,),
        }
    generator = np.random.default_rng(seed)
    made = {name: generator.standard_normal(shape) * (0.2 if len(shape) > 1 else 0.1) for name, shape in shapes.items()}
    is_scale = {name: "norm" in name.lower() and name.endswith("weight") for name in made}
    return {name: (values + is_scale[name]).astype(np.float32) for name, values in made.items()}


def encode(
    config: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]], ids: list[int], types: list[int]
) -> tuple[Array, list[Array]]:
    """One text: the last hidden state [n, D], and each layer's attention [H, n, n]."""
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    hidden = (
        weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.token_type_embeddings.weight"][types]
    )
    hidden = _layer_norm(hidden, weights, "embeddings.LayerNorm", config["layer_norm_eps"])
    attentions = []
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{layer}"
        eps, normed, inner = config["layer_norm_eps"], is_normed(config), config["intermediate_size"]
        gated, down, last = ("up_gated_layer", "down_layer", "layer_norm_2") if normed else JINA_BERT_PARTS
        context, attention = _attend(hidden, weights, f"{name}.attention.self", config)
        added = hidden + _linear(context, weights, f"{name}.attention.output.dense")
        attended = _layer_norm(added, weights, f"{name}.attention.output.LayerNorm", eps)
        hidden = _layer_norm(hidden + attended, weights, f"{name}.layer_norm_1", eps) if normed else attended
        both = hidden @ weights[f"{name}.mlp.{gated}.weight"].T
        gate, value = (both[:, inner:], both[:, :inner]) if normed else (both[:, :inner], both[:, inner:])
        activated = gate * (1 + erf(gate / np.sqrt(2))) / 2 if config["feed_forward_type"] == "geglu" else gate.clip(0)
        added = hidden + _linear(activated * value, weights, f"{name}.mlp.{down}")
        hidden = _layer_norm(added, weights, f"{name}.{last}", eps)
        attentions.append(attention)
    return hidden, attentions


def classify(tensors: Mapping[str, NDArray[np.float32]], hidden: Array) -> Array:
    """Logits of one text from its last hidden state [n, D], by BERT's layers: a tanh on the first token."""
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    logits: Array = _linear(np.tanh(_linear(hidden[:1], weights, "pooler.dense")), weights, "classifier")[0]
    return logits


def compare(
    encoder: Encoder,
    config: Mapping[str, Any],
    tensors: Mapping[str, NDArray[np.float32]],
    lengths: Sequence[int],
    sequence: int,
) -> None:
    """Holds hidden states and attention of right-padded random rows against what is written here."""
    generator = np.random.default_rng(sequence)
    tops, shape = (config["vocab_size"], config["type_vocab_size"]), (len(lengths), sequence)
    ids, types = (torch.from_numpy(generator.integers(0, top, shape)) for top in tops)
    with torch.inference_mode():
        eager, sdpa = (
            encoder.use(name)(ids, torch.tensor(lengths), token_type_ids=types) for name in ("eager", "sdpa")
        )
    close = partial(np.testing.assert_allclose, atol=TOLERANCE, rtol=0)
    for row, length in enumerate(lengths):
        hidden, attentions = encode(config, tensors, ids[row, :length].tolist(), types[row, :length].tolist())
        for found in (eager, sdpa):
            close(found.last_hidden_state[row, :length], hidden)
        for weights, expected in zip(eager.attentions, attentions, strict=True):
            close(weights[row, :, :length, :length], expected)
            assert not weights[row, :, :length, length:].any()


def _attend(hidden: Array, weights: Mapping[str, Array], name: str, config: Mapping[str, Any]) -> tuple[Array, Array]:
    query, key, value = (_linear(hidden, weights, f"{name}.{part}") for part in ("query", "key", "value"))
    if is_normed(config):
        query = _layer_norm(query, weights, f"{name}.layer_norm_q", config["layer_norm_eps"])
        key = _layer_norm(key, weights, f"{name}.layer_norm_k", config["layer_norm_eps"])
    heads = config["num_attention_heads"]
    n, size = len(hidden), hidden.shape[1] // heads
    attention, context = np.zeros((heads, n, n)), np.zeros_like(hidden)
    for head, slope in enumerate(SLOPES[heads]):
        columns = slice(head * size, (head + 1) * size)
        for i in range(n):
            scores = [query[i, columns] @ key[j, columns] / np.sqrt(size) - slope * abs(i - j) for j in range(n)]
            share = np.exp(np.array(scores) - max(scores))
            attention[head, i] = share / share.sum()
        context[:, columns] = attention[head] @ value[:, columns]
    return context, attention


def _linear(x: Array, weights: Mapping[str, Array], name: str) -> Array:
    product: Array = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return product


def _layer_norm(x: Array, weights: Mapping[str, Array], name: str, eps: float) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    normed: Array = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + eps)
    return normed * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
