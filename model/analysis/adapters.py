"""An attention answer over HTTP as other tools expect it: BertViz, CircuitsVis, Hugging Face's `attentions`.

    item = requests.post(url, json={"inputs": text, "attention": {"layers": "all"}}).json()["attention"][0]
    view = to_bertviz(item)
    head_view([torch.from_numpy(layer) for layer in view.attention], view.tokens, include_layers=view.include_layers)
    attention_heads(**to_circuitsvis(item)[0]._asdict())

Arrays are numpy; BertViz wants tensors. Indices that the tools show are the model's, also where only some layers or
heads were asked for. What they have no form for (top-k, maps reduced over heads, single rows) is refused.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from model.analysis.arrays import Float32Array

_DTYPES = {"float32": "<f4", "float16": "<f2"}
_ROW_SUM_TOLERANCE = 1e-2  # float16 rows are off by less than 0.001, rows without their special keys by far more


class AdapterError(ValueError):
    """The answer has no form in the tool: the message says what to ask the service for instead."""


class BertVizView(NamedTuple):
    """Arguments of BertViz' `head_view` and `model_view`, `attention` still to be made tensors.

    Attributes:
        attention: [1, H, n, n] a layer, as many as the highest layer asked for needs and each as wide as the highest
            head: BertViz counts places and stacks layers. Heads not asked for are 0; layers not asked for repeat the
            first one, `include_layers` keeps them from being shown.
        tokens: of rows and columns, or words if the answer is of words.
        include_layers: the layers asked for, ascending.
    """

    attention: list[Float32Array]
    tokens: list[str]
    include_layers: list[int]


class CircuitsVisView(NamedTuple):
    """Arguments of CircuitsVis' `attention_heads` for one layer.

    Attributes:
        attention: [H, destination, source].
        tokens: of rows and columns.
        attention_head_names: "L3H0" for layer 3, head 0.
        mask_upper_tri: False: its default hides what an encoder's tokens read to their right.
    """

    attention: Float32Array
    tokens: list[str]
    attention_head_names: list[str]
    mask_upper_tri: bool


class _Answer(NamedTuple):
    tokens: list[str]
    layers: list[int]
    heads: list[list[int]]
    weights: list[Float32Array]


def to_bertviz(item: Mapping[str, Any]) -> BertVizView:
    """One `attention` item as BertViz' views take it; `AdapterError` where maps are reduced, cut or missing rows."""
    answer = _read(item)
    num_heads = 1 + max((head for heads in answer.heads for head in heads), default=-1)
    if not num_heads:
        raise AdapterError("no layer of the answer has heads: there is nothing to show")
    maps = {
        layer: _placed(weights, heads, num_heads)
        for layer, heads, weights in zip(answer.layers, answer.heads, answer.weights, strict=True)
    }
    filler = maps[answer.layers[0]]
    attention = [maps.get(layer, filler) for layer in range(max(maps) + 1)]
    return BertVizView(attention, answer.tokens, sorted(maps))


def to_circuitsvis(item: Mapping[str, Any]) -> list[CircuitsVisView]:
    """One `attention` item as arguments of `attention_heads`, one a layer with heads; errors as of `to_bertviz`."""
    answer = _read(item)
    return [
        CircuitsVisView(weights, answer.tokens, [f"L{layer}H{head}" for head in heads], mask_upper_tri=False)
        for layer, heads, weights in zip(answer.layers, answer.heads, answer.weights, strict=True)
        if heads
    ]


def to_huggingface(item: Mapping[str, Any]) -> tuple[Float32Array, ...]:
    """One `attention` item as the `attentions` of a Hugging Face model's output: [1, H, n, n] a layer, from layer 0.

    The tuple has no names, so every layer and head must be there, and tokens, not words.

    Raises:
        AdapterError: maps are reduced, cut, missing rows or of words; a layer or head is missing; or rows do not sum
            to 1.
    """
    answer = _read(item)
    if "words" in item:
        raise AdapterError('the answer\'s maps are of words: ask for level "token"')
    if answer.layers != list(range(len(answer.layers))):
        raise AdapterError(f'layers are {answer.layers}: `attentions` holds every layer in order, ask for layers "all"')
    for layer, (heads, weights) in enumerate(zip(answer.heads, answer.weights, strict=True)):
        if heads != list(range(len(heads))):
            raise AdapterError(f'layer {layer} has heads {heads}: `attentions` holds every head, ask for heads "all"')
        if not (np.abs(weights.sum(axis=-1, dtype=np.float64) - 1) <= _ROW_SUM_TOLERANCE).all():
            raise AdapterError(f"layer {layer} has rows that do not sum to 1: ask for weights, special tokens included")
    return tuple(weights[np.newaxis] for weights in answer.weights)


def _placed(weights: Float32Array, heads: Sequence[int], num_heads: int) -> Float32Array:
    """[H, n, n] as [1, num_heads, n, n], each head at its index."""
    placed = np.zeros((1, num_heads, *weights.shape[1:]), dtype=np.float32)
    placed[0, list(heads)] = weights
    return placed


def _read(item: Mapping[str, Any]) -> _Answer:
    """The item's maps as arrays, or the reason why they are not [layer][head][query][key] over one list of labels."""
    if "indices" in item:
        raise AdapterError("the answer holds the top k keys of each query: ask without top_k")
    if "weights" not in item:
        raise AdapterError("the answer holds no weights: ask for the form that does")
    tokens, layers, heads = item["words" if "words" in item else "tokens"], item.get("layers"), item.get("heads")
    if item.get("reduce") or not layers or not heads:  # a rollout of one head in one layer has the shape of its map
        raise AdapterError('the answer\'s maps are reduced: ask with reduce "none"')
    weights = [_maps(*entry, len(tokens)) for entry in zip(layers, item["weights"], heads, strict=True)]
    return _Answer(tokens, layers, heads, weights)


def _maps(layer: int, value: Any, heads: Sequence[int], num_tokens: int) -> Float32Array:
    if not heads or not num_tokens:  # JSON has no shape of nothing
        return np.zeros((len(heads), num_tokens, num_tokens), dtype=np.float32)
    weights = _tensor(value) if isinstance(value, Mapping) else np.array(value, dtype=np.float32)
    if len(weights) != len(heads):
        raise AdapterError(
            f"layer {layer}: weights have shape {weights.shape} for {len(heads)} heads, they are reduced: ask with "
            'reduce "none"'
        )
    if weights.shape[1:] != (num_tokens, num_tokens):
        raise AdapterError(
            f"layer {layer}: maps have {weights.shape[1]} queries and {weights.shape[2]} keys for {num_tokens} tokens: "
            'ask for queries "all", without top_k'
        )
    return weights


def _tensor(value: Mapping[str, Any]) -> Float32Array:
    data = base64.b64decode(value["data"])
    return np.frombuffer(data, dtype=_DTYPES[value["dtype"]]).reshape(value["shape"]).astype(np.float32)
