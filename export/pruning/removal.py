"""Removes heads physically: their rows of the query, key and value projections, their columns of the output's.

A head is removed with its value bias, as a gate of 0 removes it; the output bias stays. What is left computes what the
whole network computes with those gates at 0.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from export.checkpoint import build_encoder
from export.errors import UnsupportedModel
from model.config import EncoderConfig
from model.encoder import Encoder

BIASED = ("alibi", "relative")  # positions with a bias a head, made once for all layers


def remove_heads(encoder: Encoder, removed: Collection[int]) -> Encoder:
    """The encoder without some heads; the original is left as it was and shares nothing with it: either may be trained.

    Args:
        encoder: the network.
        removed: heads counted from the first layer's first (see `EncoderConfig.head_span`).

    Raises:
        UnsupportedModel: heads of this network cannot be removed one by one.
        ValueError: there is no such head.
    """
    config = encoder.config
    if outside := sorted(set(removed) - set(range(sum(config.num_heads)))):
        raise ValueError(f"no head {outside[0]}: the network has {sum(config.num_heads)}")
    if config.value_residual:
        raise UnsupportedModel("a layer that adds the first layer's values needs the same heads: none can be removed")
    kept = [
        tuple(head for head in range(heads) if config.head_span(layer).start + head not in removed)
        for layer, heads in enumerate(config.num_heads)
    ]
    state = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    for layer, heads in enumerate(kept):
        if len(heads) < config.num_heads[layer]:
            _cut_layer(state, f"layers.{layer}.attention", heads, config)
    return build_encoder(_cut_config(config, kept), state)


def apply_removal(encoder: Encoder, places: Sequence[Sequence[int]]) -> Encoder:
    """The encoder without the heads at [layer, head], as a manifest's record of pruning lists them."""
    return remove_heads(encoder, [encoder.config.head_span(layer).start + head for layer, head in places])


def _cut_layer(state: dict[str, Tensor], name: str, heads: tuple[int, ...], config: EncoderConfig) -> None:
    """Cuts one layer's tensors down to some of its heads, in place of the whole ones."""
    if not heads:
        bias = state.get(f"{name}.output.bias", torch.zeros(config.hidden_size))
        for key in [key for key in state if key.startswith(f"{name}.")]:
            del state[key]
        state[f"{name}.output_bias"] = bias
        return
    output = state[f"{name}.output.weight"]
    state[f"{name}.output.weight"] = output[:, _places(heads, config.d_v)].contiguous()
    for part, size in (("query", config.d_k), ("key", config.d_k), ("value", config.d_v), ("stream.gate", 1)):
        for key in (f"{name}.{part}.weight", f"{name}.{part}.bias"):
            if key in state:
                state[key] = state[key][_places(heads, size)].contiguous()


def _places(heads: tuple[int, ...], size: int) -> Tensor:
    """Rows or columns that belong to heads of a size, [heads * size]."""
    return (torch.tensor(heads)[:, None] * size + torch.arange(size)).flatten()


def _cut_config(config: EncoderConfig, kept: list[tuple[int, ...]]) -> EncoderConfig:
    changes: dict[str, Any] = {"num_heads": tuple(map(len, kept))}
    if config.attention_positions in BIASED:
        before = config.kept_heads or tuple(tuple(range(heads)) for heads in config.num_heads)
        changes["original_heads"] = config.original_heads or config.num_heads[0]
        changes["kept_heads"] = tuple(tuple(of[head] for head in heads) for of, heads in zip(before, kept, strict=True))
    return replace(config, **changes)
