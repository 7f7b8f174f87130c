"""Attention transformed as the API's description says, in float64 and by matrices; shares no code with the service."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def transformed(
    attentions: Sequence[Array], options: Mapping[str, Any], *, special: Sequence[bool], word_ids: Sequence[int | None]
) -> list[Array]:
    """[maps, queries, keys] of each layer that a request's `attention` is answered with, before `top_k`.

    `attentions` are every layer's, [H, n, n]; `special` [n] are the tokens that the tokenizer added.
    """
    heads, rolls_out = options.get("heads", "all"), options.get("reduce") == "rollout"
    layers = "all" if rolls_out else options.get("layers", "last")
    if isinstance(layers, str):
        layers = range(len(attentions)) if layers == "all" else [-1]
    chosen = [attentions[layer].astype(np.float64) for layer in layers]
    if heads != "all":
        chosen = [weights[heads] for weights in chosen]
    if rolls_out:
        chosen = [_rolled_out(chosen, len(special))[np.newaxis]]
    return [_between(weights, options, np.array(special), word_ids) for weights in chosen]


def _rolled_out(maps: Sequence[Array], num_tokens: int) -> Array:
    followed = np.eye(num_tokens)
    for weights in maps:
        if len(weights):
            step = weights.mean(axis=0) + np.eye(num_tokens)
            followed = step / step.sum(axis=-1, keepdims=True) @ followed
    return followed


def _between(weights: Array, options: Mapping[str, Any], special: Array, word_ids: Sequence[int | None]) -> Array:
    if options.get("exclude_special"):
        weights = weights * ~special
    if options.get("renormalise"):
        sums = weights.sum(axis=-1, keepdims=True)
        weights = weights / np.where(sums > 0, sums, 1)
    rows, columns = _projections(options, special, word_ids)
    weights = rows @ weights @ columns
    if len(weights) and options.get("reduce") in ("mean", "max"):
        is_mean = options["reduce"] == "mean"
        weights = (weights.mean(axis=0) if is_mean else weights.max(axis=0))[np.newaxis]
    return weights


def _projections(options: Mapping[str, Any], special: Array, word_ids: Sequence[int | None]) -> tuple[Array, Array]:
    """What takes rows' means, [queries, n], and what takes columns' sums, [n, keys]."""
    groups = [[token] for token in range(len(special))]
    if options.get("level") == "word":
        names = [("token", token) if word is None else ("word", word) for token, word in enumerate(word_ids)]
        groups = [[at for at, _ in group] for _, group in itertools.groupby(enumerate(names), lambda pair: pair[1])]
    kept = [group for group in groups if not (options.get("exclude_special") and special[group[0]])]
    queries = groups[:1] if options.get("queries") == "cls" else kept
    rows, columns = np.zeros((len(queries), len(special))), np.zeros((len(special), len(kept)))
    for place, group in enumerate(queries):
        rows[place, group] = 1 / len(group)
    for place, group in enumerate(kept):
        columns[group, place] = 1
    return rows, columns
