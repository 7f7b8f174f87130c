"""Removes heads physically: their rows of the query, key and value projections, their columns of the output's.

Keys and values that several query heads read go with the last of these. A head's value bias goes, the output bias
stays: what is left computes what the whole network computes with those gates at 0.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from export.checkpoint import build_encoder
from export.errors import UnsupportedModel
from model.config import EncoderConfig
from model.encoder import Encoder

BIASED = ("alibi", "relative")  # positions with a bias a head, made once for all layers

Kept = list[tuple[int, ...]]  # the heads that each layer keeps


def remove_heads(encoder: Encoder, removed: Collection[int]) -> Encoder:
    """The encoder without some heads, counted from the first layer's first (see `EncoderConfig.head_span`).

    The original is left as it was and shares nothing with it: either may be trained.

    Raises:
        UnsupportedModel: heads of this network cannot be removed one by one.
        ValueError: there is no such head.
    """
    config = encoder.config
    if outside := sorted(set(removed) - set(range(sum(config.num_heads)))):
        raise ValueError(f"no head {outside[0]}: the network has {sum(config.num_heads)}")
    if config.value_residual:
        raise UnsupportedModel("a layer that adds the first layer's values needs the same heads: none can be removed")
    if config.query_key_layer_norm:
        raise UnsupportedModel("queries and keys are normed over all heads together: none can be removed")
    kept: Kept = [
        tuple(head for head in range(heads) if config.head_span(layer).start + head not in removed)
        for layer, heads in enumerate(config.num_heads)
    ]
    state = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    for layer, heads in enumerate(kept):
        if len(heads) < config.num_heads[layer]:
            _cut_layer(state, layer, heads, config)
    return build_encoder(_cut_config(config, kept), state)


def apply_removal(encoder: Encoder, places: Sequence[Sequence[int]]) -> Encoder:
    """The encoder without the heads at [layer, head], as a manifest's record of pruning lists them."""
    return remove_heads(encoder, [encoder.config.head_span(layer).start + head for layer, head in places])


def _cut_layer(state: dict[str, Tensor], layer: int, heads: tuple[int, ...], config: EncoderConfig) -> None:
    """Cuts one layer's tensors down to some of its heads, instead of the whole ones."""
    name = f"layers.{layer}.attention"
    if not heads:
        bias = state.get(f"{name}.output.bias", torch.zeros(config.hidden_size))
        for key in [key for key in state if key.startswith(f"{name}.")]:
            del state[key]
        state[f"{name}.output_bias"] = bias
        return
    d_k, d_v = config.head_sizes(layer)
    output = state[f"{name}.output.weight"]
    state[f"{name}.output.weight"] = output[:, _places(heads, d_v)].contiguous()
    read = tuple(head for head, readers in enumerate(_readers(layer, heads, config)) if readers)
    parts = (
        ("query", heads, d_k),
        ("position_key", heads, d_k),
        ("position_query", heads, d_k),
        ("stream.gate", heads, 1),
        ("key", read, d_k),
        ("value", read, d_v),
    )
    for part, chosen, size in parts:
        for key in (f"{name}.{part}.weight", f"{name}.{part}.bias"):
            if key in state:
                state[key] = state[key][_places(chosen, size)].contiguous()


def _readers(layer: int, heads: tuple[int, ...], config: EncoderConfig) -> list[int]:
    """How many of the heads that a layer keeps read each of its key and value heads."""
    ends = list(accumulate(config.groups(layer)))
    return [sum(start <= head < end for head in heads) for start, end in zip([0, *ends], ends, strict=False)]


def _places(heads: tuple[int, ...], size: int) -> Tensor:
    """Rows or columns that belong to heads of a size, [heads * size]."""
    return (torch.tensor(heads)[:, None] * size + torch.arange(size)).flatten()


def _cut_config(config: EncoderConfig, kept: Kept) -> EncoderConfig:
    changes: dict[str, Any] = {"num_heads": tuple(map(len, kept))}
    if changes["num_heads"] != config.num_heads:
        changes["shared_layers"] = ()  # layers of one weight do not all lose the same heads
    if config.num_key_value_heads:
        readers = [_readers(layer, heads, config) for layer, heads in enumerate(kept)]
        groups = tuple(tuple(filter(None, sizes)) for sizes in readers)
        changes["num_key_value_heads"] = tuple(map(len, groups))
        changes["query_groups"] = groups if any(len(set(sizes)) > 1 for sizes in groups) else ()
    if config.attention_positions in BIASED:
        before = config.kept_heads or tuple(tuple(range(heads)) for heads in config.num_heads)
        changes["original_heads"] = config.original_heads or config.num_heads[0]
        changes["kept_heads"] = tuple(tuple(of[head] for head in heads) for of, heads in zip(before, kept, strict=True))
    return replace(config, **changes)
