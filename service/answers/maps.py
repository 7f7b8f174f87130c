"""One input's attention as its request wants it: weights selected, reduced and cut, or statistics of them.

The order of the steps is that of `service.requests.attention_schemas.AttentionRequest`. Rows are picked first all the
same: every step but the rollout works row by row, and a caller who wants one row pays for one. It knows neither names
of tokens nor JSON.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.analysis.arrays import Float32Array
from model.analysis.norms import norm_weighted
from model.analysis.punctuation import punctuation_mask
from model.analysis.reductions import max_over_heads, mean_over_heads
from model.analysis.rollout import rollout
from model.analysis.special import exclude_special
from model.analysis.statistics import STATISTICS, head_statistics
from model.analysis.top_k import top_k
from model.analysis.words import Span, to_words
from service.inference.backend import Int64Array
from service.requests.axes import Axes
from service.requests.selection import AttentionSelection

Attentions = Mapping[int, Float32Array]


def make_maps(
    attentions: Attentions, selection: AttentionSelection, axes: Axes, value_norms: Attentions | None = None
) -> dict[str, list[NDArray[Any]]]:
    """The maps of each layer, C-contiguous; a rollout's is one for all layers.

    Args:
        attentions: by layer, [H_l, n, n]; at least `selection.computed_layers`.
        selection: layers, heads and options.
        axes: of this input.
        value_norms: by layer, [H_l, n]; what weights are multiplied by where the norm-weighted view is asked for.

    Returns:
        `weights` [maps, queries, keys] of each layer; with `top_k` [maps, queries, k], and beside them `indices`
        [maps, queries, k] and `left_out` [maps, queries].
    """
    options = selection.options
    if options.reduce == "rollout":
        layers = [_between_axes(_rollout(attentions, selection, axes), selection, axes)]
    else:
        heads = (_heads(attentions[layer], selection, axes, rows=axes.rows) for layer in selection.layers)
        if selection.options.form == "norms":
            norms = (_head_norms(value_norms or {}, layer, selection) for layer in selection.layers)
            heads = (norm_weighted(*pair) for pair in zip(heads, norms, strict=True))
        layers = [_layer(maps, selection, axes) for maps in heads]
    if options.top_k is None:
        return {"weights": [np.ascontiguousarray(maps) for maps in layers]}
    largest = [top_k(maps, options.top_k) for maps in layers]
    return {
        name: [np.ascontiguousarray(getattr(layer, name)) for layer in largest]
        for name in ("indices", "weights", "left_out")
    }


def make_statistics(
    attentions: Attentions, selection: AttentionSelection, axes: Axes, *, input_ids: Int64Array, tokens: list[str]
) -> dict[str, list[Float32Array] | None]:
    """Each of `STATISTICS`: [heads] of each layer, or None where this input does not define it."""
    punctuation = punctuation_mask(tokens, axes.special)
    layers = [
        head_statistics(
            _heads(attentions[layer], selection, axes, rows=axes.num_tokens),
            token_ids=input_ids,
            special=axes.special,
            punctuation=punctuation,
            causal=selection.causal,
        )
        for layer in selection.layers
    ]
    found: dict[str, list[Float32Array] | None] = {}
    for name in STATISTICS:
        values = [values for layer in layers if (values := layer[name]) is not None]
        found[name] = values or None  # what a text does not define, it defines for no layer
    return found


def _heads(weights: Float32Array, selection: AttentionSelection, axes: Axes, *, rows: int) -> Float32Array:
    """The heads asked for and their first rows, [heads, rows, n]; a view where nothing is left out."""
    if not len(weights):  # a graph may give a layer without heads no rows either
        return np.zeros((0, rows, axes.num_tokens), dtype=np.float32)
    heads = slice(None) if selection.heads is None else list(selection.heads)
    selected: Float32Array = weights[heads, :rows]
    return selected


def _head_norms(value_norms: Attentions, layer: int, selection: AttentionSelection) -> Float32Array:
    """The value norms of the heads asked for, [heads, n]."""
    norms: Float32Array = value_norms[layer]
    return norms if selection.heads is None else norms[list(selection.heads)]


def _layer(heads: Float32Array, selection: AttentionSelection, axes: Axes) -> Float32Array:
    """A layer's maps, [maps, queries, keys], from its heads' [heads, rows, n]; without heads none, reduced or not."""
    maps = _between_axes(heads, selection, axes)
    if not len(maps) or selection.options.reduce == "none":
        return maps
    reduced = mean_over_heads(maps) if selection.options.reduce == "mean" else max_over_heads(maps)
    return reduced[np.newaxis]


def _rollout(attentions: Attentions, selection: AttentionSelection, axes: Axes) -> Float32Array:
    """[1, rows, n]. Only whole maps of every layer can be followed from one to the next, special tokens included."""
    whole = [_heads(attentions[layer], selection, axes, rows=axes.num_tokens) for layer in selection.layers]
    start = None if selection.options.queries == "all" else np.eye(axes.rows, axes.num_tokens)
    return rollout(whole, start)[np.newaxis]


def _between_axes(maps: Float32Array, selection: AttentionSelection, axes: Axes) -> Float32Array:
    """[maps, rows, n] as [maps, queries, keys]: without special tokens, by words. A row asked for by name is kept."""
    options = selection.options
    picked = options.queries == "cls"
    if options.exclude_special:
        queries = np.zeros(axes.rows, dtype=np.bool_) if picked else None
        maps = exclude_special(maps, axes.special, queries=queries, renormalise=options.renormalise)
    if axes.words is None:
        return maps
    if not axes.keys:
        return np.zeros((len(maps), axes.queries, 0), dtype=np.float32)
    return to_words(maps, _side_by_side(axes.words), [(0, axes.rows)] if picked else None)


def _side_by_side(words: tuple[Span, ...]) -> list[Span]:
    """The same words without the tokens that were dropped between them."""
    ends = np.cumsum([end - start for start, end in words]).tolist()
    return [(end - (word[1] - word[0]), end) for end, word in zip(ends, words, strict=True)]
