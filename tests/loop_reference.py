"""An encoder by its definition, a head and a query at a time, in float64; shares no code with `model`.

Groups of queries, norms of queries and keys, causal and local attention, rotary positions, norms before and behind, and
the options of the value stream.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from model.config import EncoderConfig

State = dict[str, Tensor]
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "silu": functional.silu,
    "relu": functional.relu,
}


class Found(NamedTuple):
    """One text's hidden state [n, D], and a layer's weights [H, n, n] and value norms [H, n]."""

    hidden: Tensor
    weights: list[Tensor]
    norms: list[Tensor]


def run(config: EncoderConfig, state: State, ids: Tensor, gates: Sequence[Sequence[float]] | None = None) -> Found:
    """One text [n] through the network; `gates[l][h]`, 1 if not given, multiplies the output of a head."""
    gates = gates or [[1.0] * heads for heads in config.num_heads]
    state = {name: tensor.double() for name, tensor in state.items()}
    hidden = state["embeddings.token.weight"][ids]
    if config.type_vocab_size:
        hidden = hidden + state["embeddings.token_type.weight"][0]
    if config.positions == "learned":
        hidden = hidden + state["embeddings.position.weight"][: len(ids)]
    if config.embedding_norm:
        hidden = _normed(config, state, "embeddings.norm", hidden)
    weights, norms = [], []
    first: list[Tensor] = []
    for layer in range(config.num_layers):
        name = f"layers.{layer}"
        read = _normed(config, state, f"{name}.attention_norm", hidden) if config.pre_norm else hidden
        attended, of_layer, moved = _attention(config, state, layer, read, gates[layer], first)
        weights.append(of_layer)
        norms.append(moved)
        hidden = _add(config, state, hidden, attended, f"{name}.attention")
        read = _normed(config, state, f"{name}.feed_forward_norm", hidden) if config.pre_norm else hidden
        hidden = _add(config, state, hidden, _feed_forward(config, state, name, read), f"{name}.feed_forward")
    return Found(_normed(config, state, "final_norm", hidden) if config.final_norm else hidden, weights, norms)


def _add(config: EncoderConfig, state: State, hidden: Tensor, added: Tensor, name: str) -> Tensor:
    if config.sandwich_norm:
        added = _normed(config, state, f"{name}_output_norm", added)
    if config.pre_norm:
        return hidden + added
    normed = _normed(config, state, f"{name}_norm", hidden + added)
    if config.attention_residual_norm and name.endswith(".attention"):
        return _normed(config, state, f"{name}_residual_norm", hidden + normed)
    return normed


def _feed_forward(config: EncoderConfig, state: State, name: str, x: Tensor) -> Tensor:
    up, activation = _linear(state, f"{name}.feed_forward.up", x), ACTIVATIONS[config.activation]
    inner = activation(_linear(state, f"{name}.feed_forward.gate", x)) * up if config.gated else activation(up)
    return _linear(state, f"{name}.feed_forward.down", inner)


def _attention(
    config: EncoderConfig, state: State, layer: int, x: Tensor, gates: Sequence[float], first: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    name = f"layers.{layer}.attention"
    if not config.num_heads[layer]:
        return state[f"{name}.output_bias"].expand_as(x), x.new_zeros(0, len(x), len(x)), x.new_zeros(0, len(x))
    query, key, value = (_linear(state, f"{name}.{part}", x) for part in ("query", "key", "value"))
    value = _valued(config, state, layer, value, first)
    if config.query_key_layer_norm:
        normal = replace(config, norm="layer_norm")
        query, key = (_normed(normal, state, f"{name}.{part}_norm", y) for part, y in (("query", query), ("key", key)))
    output, length = state[f"{name}.output.weight"], len(x)
    added = state.get(f"{name}.output.bias", torch.zeros(config.hidden_size, dtype=torch.float64)).expand(length, -1)
    read = [group for group, size in enumerate(config.groups(layer)) for _ in range(size)]
    weights = torch.zeros(config.num_heads[layer], length, length, dtype=torch.float64)
    norms = torch.zeros(config.num_heads[layer], length, dtype=torch.float64)
    for head, group in enumerate(read):
        q = _placed(config, state, f"{name}.query_norm", query[:, head * config.d_k : (head + 1) * config.d_k], layer)
        k = _placed(config, state, f"{name}.key_norm", key[:, group * config.d_k : (group + 1) * config.d_k], layer)
        moved = (
            value[:, group * config.d_v : (group + 1) * config.d_v] @ output[:, head * config.d_v :][:, : config.d_v].T
        )
        norms[head] = moved.norm(dim=1)
        for place in range(length):
            seen = _seen(config, layer, place, length)
            weights[head, place, seen] = ((k[seen] @ q[place]) * _scale(config)).softmax(dim=0)
        gate = torch.tensor(gates[head], dtype=torch.float64)
        if config.output_gate:
            opened = x @ state[f"{name}.stream.gate.weight"][head] + state[f"{name}.stream.gate.bias"][head]
            gate = gate / (1 + torch.exp(-opened))[:, None]
        added = added + gate * (weights[head] @ moved)
    return added, weights, norms


def _valued(config: EncoderConfig, state: State, layer: int, value: Tensor, first: list[Tensor]) -> Tensor:
    """Values [n, HV], activated and mixed with the first layer's."""
    if config.value_activation == "silu":
        value = value * torch.sigmoid(value)
    first.append(value)
    if not layer or not config.value_residual:
        return value
    fixed = torch.tensor(config.value_residual[layer], dtype=torch.float64)
    mix = state.get(f"layers.{layer}.attention.stream.mix", fixed)
    return mix[0] * first[0] + mix[1] * value


def _seen(config: EncoderConfig, layer: int, place: int, length: int) -> list[int]:
    keys = range(place + 1) if config.causal else range(length)
    window = config.window if config.window is not None and layer in config.local_layers else length
    return [key for key in keys if abs(key - place) <= window]


def _scale(config: EncoderConfig) -> float:
    return config.d_k**-0.5 if config.score_scale is None else config.score_scale


def _placed(config: EncoderConfig, state: State, norm: str, x: Tensor, layer: int) -> Tensor:
    """Queries or keys [n, K] of one head, normed and turned: each pair of dimensions as one complex number."""
    if config.query_key_norm:
        x = x / (x.square().mean(dim=1, keepdim=True) + config.norm_eps).sqrt() * state[f"{norm}.weight"]
    if config.attention_positions != "rotary":
        return x
    is_local = layer in config.local_layers and config.local_rope_theta is not None
    theta = float(config.local_rope_theta or 0) if is_local else config.rope_theta
    half, turned = config.d_k // 2, torch.empty_like(x)
    for place in range(len(x)):
        for pair in range(half):
            angle = place * theta ** (-2 * pair / config.d_k)
            number = complex(x[place, pair], x[place, pair + half]) * complex(math.cos(angle), math.sin(angle))
            turned[place, pair], turned[place, pair + half] = number.real, number.imag
    return turned


def _linear(state: State, name: str, x: Tensor) -> Tensor:
    product = x @ state[f"{name}.weight"].T
    return product + state[f"{name}.bias"] if f"{name}.bias" in state else product


def _normed(config: EncoderConfig, state: State, name: str, x: Tensor) -> Tensor:
    if config.norm == "layer_norm":
        x = x - x.mean(dim=1, keepdim=True)
    scaled = x / (x.square().mean(dim=1, keepdim=True) + config.norm_eps).sqrt() * state[f"{name}.weight"]
    return scaled + state[f"{name}.bias"] if f"{name}.bias" in state else scaled
