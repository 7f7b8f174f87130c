"""A post-norm network by its equations, a head and a layer at a time; shares no code with `model`."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from model.config import EncoderConfig

State = dict[str, Tensor]


class WrittenOut(NamedTuple):
    """The hidden state [n, D] of one text, and each layer's weights [H, n, n]."""

    hidden: Tensor
    attentions: list[Tensor]


def run(config: EncoderConfig, state: State, ids: Tensor) -> WrittenOut:
    """One text [n] through the network, in float64."""
    state = {name: tensor.double() for name, tensor in state.items()}
    tokens = state["embeddings.token.weight"][ids]
    if config.type_vocab_size:
        tokens = tokens + state["embeddings.token_type.weight"][0]
    hidden = _normed(state, "embeddings.norm", tokens + state["embeddings.position.weight"][: len(ids)], config)
    first: list[Tensor] = []
    attentions = []
    for layer in range(config.num_layers):
        attended, weights = _attention(config, state, layer, hidden, first)
        attentions.append(weights)
        hidden = _normed(state, f"layers.{layer}.attention_norm", hidden + attended, config)
        up = functional.gelu(_linear(state, f"layers.{layer}.feed_forward.up", hidden))
        hidden = hidden + _linear(state, f"layers.{layer}.feed_forward.down", up)
        hidden = _normed(state, f"layers.{layer}.feed_forward_norm", hidden, config)
    return WrittenOut(hidden, attentions)


def _attention(
    config: EncoderConfig, state: State, layer: int, hidden: Tensor, first: list[Tensor]
) -> tuple[Tensor, Tensor]:
    name, heads = f"layers.{layer}.attention", config.num_heads[layer]
    if not heads:
        return state[f"{name}.output_bias"].expand_as(hidden), hidden.new_zeros(0, len(hidden), len(hidden))
    query, key, value = (_linear(state, f"{name}.{part}", hidden) for part in ("query", "key", "value"))
    if config.value_activation == "silu":
        value = value * torch.sigmoid(value)
    contexts, maps = [], []
    for head in range(heads):
        q, k = (x[:, head * config.d_k : (head + 1) * config.d_k] for x in (query, key))
        v = _mixed(config, state, layer, head, value[:, head * config.d_v : (head + 1) * config.d_v], first)
        weights = torch.exp(q @ k.T / config.d_k**0.5)
        maps.append(weights / weights.sum(dim=1, keepdim=True))
        context = maps[-1] @ v
        if config.output_gate:
            gate = hidden @ state[f"{name}.stream.gate.weight"][head] + state[f"{name}.stream.gate.bias"][head]
            context = context / (1 + torch.exp(-gate))[:, None]
        contexts.append(context)
    return _linear(state, f"{name}.output", torch.cat(contexts, dim=1)), torch.stack(maps)


def _mixed(config: EncoderConfig, state: State, layer: int, head: int, value: Tensor, first: list[Tensor]) -> Tensor:
    if not layer:
        first.append(value)
    if not layer or not config.value_residual:
        return value
    fixed = torch.tensor(config.value_residual[layer], dtype=torch.float64)
    mix = state.get(f"layers.{layer}.attention.stream.mix", fixed)
    return mix[0] * first[head] + mix[1] * value


def _linear(state: State, name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def _normed(state: State, name: str, x: Tensor, config: EncoderConfig) -> Tensor:
    centred = x - x.mean(dim=1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=1, keepdim=True) + config.norm_eps).sqrt()
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]
