"""Turns a float32 post-norm encoder into its 8-bit form, from the ranges of its products on calibration text."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from tqdm import tqdm

from export.int8.layers import (
    HIGHEST,
    ConstantAttention,
    QuantizedAttention,
    QuantizedFeedForward,
    QuantizedLayer,
    QuantizedLinear,
)
from export.texts import TextBatch
from model.attention import MultiHeadAttention
from model.config import Activation, EncoderConfig
from model.encoder import Encoder, EncoderLayer

# Share of the difficulty that moves from activations into weights (SmoothQuant's default is 0.5). With an offset for
# each channel more can move: worst cosine of MiniLM-L6 over the STS-B development split is 0.9954 at 0.5, 0.9961 at
# 0.65, 0.9967 at 0.75, 0.9960 at 0.85.
ALPHA = 0.75
MARGIN = 1.05  # room above what calibration saw
DOWN_ZERO_POINT = 20
LOWEST_ACTIVATION: Mapping[Activation, float] = {"gelu": 0.17, "gelu_tanh": 0.17, "relu": 0.0, "silu": 0.2785}
# What a network with this form may be. Scales are in the LayerNorm before a product and in its bias, so both must be
# there. A setting that is in neither table must have its default: one that is added later has the other form.
ANY_VALUE = {
    *("vocab_size", "hidden_size", "num_heads", "d_k", "d_v", "max_positions"),
    *("intermediate_size", "intermediate_sizes"),
    *("type_vocab_size", "token_size", "activation", "norm_eps", "positions", "local_layers", "window"),
    *("relative_buckets", "relative_distance", "original_heads", "kept_heads"),
    *("head_dropout", "final_norm", "pooling", "projections", "task", "task_settings"),  # training; behind the layers
    *("rope_theta", "rope_divisor", "local_rope_theta"),  # of rotary positions, which have the other form
}
PLACES = (".attention", ".attention.output", ".feed_forward", ".feed_forward.down")  # whose inputs have ranges
QUANTIZABLE: Mapping[str, tuple[object, ...]] = {"attention_positions": ("none", "alibi", "relative")}


@dataclass(frozen=True, slots=True)
class Range:
    """Lowest and highest value of each channel at one place, both [channels]."""

    lowest: Tensor
    highest: Tensor


@dataclass(frozen=True, slots=True)
class Steps:
    """How a place is put in steps: `x / size + offset` lies in [0, 255] for what calibration saw; both [channels]."""

    size: Tensor
    offset: Tensor


def has_folded_form(config: EncoderConfig) -> bool:
    """Whether a network has the 8-bit form whose scales are in its norms; any other has the form of `int8.rows`."""
    return all(
        field.name in ANY_VALUE or getattr(config, field.name) in QUANTIZABLE.get(field.name, (field.default,))
        for field in fields(config)
    )


def see_ranges(encoder: Encoder, batched: Sequence[TextBatch]) -> Mapping[str, Range]:
    """Range of each channel of the places that `quantize_encoder` asks for, by module name."""
    seen: dict[str, Range] = {}
    with ExitStack() as hooks, torch.inference_mode():
        for name, module in encoder.named_modules():
            if name.startswith("layers.") and name.endswith(PLACES):
                hooks.callback(module.register_forward_pre_hook(partial(_widen_range, seen, name)).remove)
        for batch in tqdm(batched, desc="calibrating", unit="batch", leave=False):
            encoder.use("sdpa")(batch.input_ids, batch.lengths, token_type_ids=batch.token_type_ids)
    return seen


def _widen_range(seen: dict[str, Range], name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    lowest, highest = inputs[0].amin(dim=0), inputs[0].amax(dim=0)  # [T, channels] -> [channels]
    if before := seen.get(name):
        lowest, highest = torch.minimum(before.lowest, lowest), torch.maximum(before.highest, highest)
    seen[name] = Range(lowest, highest)


def steps_for(seen: Range, weights: list[Tensor]) -> Steps:
    """One step size and offset a channel, for the products [N, channels] that read the place."""
    lowest, highest = seen.lowest.double().clamp(max=0) * MARGIN, seen.highest.double().clamp(min=0) * MARGIN
    width = (highest - lowest).clamp(min=1e-4)
    reading = torch.cat([weight.double() for weight in weights]).abs().amax(dim=0).clamp(min=1e-4)
    size = width**ALPHA / reading ** (1 - ALPHA)
    size = size * (width / size).max() / HIGHEST  # the widest channel fills all steps
    offset = (HIGHEST - width / size) / 2 - lowest / size  # the others are in the middle
    return Steps(size, offset)


def quantize_encoder(encoder: Encoder, ranges: Mapping[str, Range]) -> Encoder:
    """The 8-bit form of a post-norm encoder from the ranges of `see_ranges`; the original is left as it was."""
    quantized = copy.deepcopy(encoder)
    norm = quantized.embeddings.to_hidden or cast(nn.LayerNorm, quantized.embeddings.norm)
    for index, layer in enumerate(encoder.layers):
        made, entry = _quantize_layer(cast(EncoderLayer, layer), f"layers.{index}", ranges)
        _put_in_steps(norm, entry)
        quantized.layers[index] = made
        norm = made.feed_forward_norm
    return quantized.eval().requires_grad_(False)


def _quantize_layer(layer: EncoderLayer, name: str, ranges: Mapping[str, Range]) -> tuple[QuantizedLayer, Steps]:
    attention, feed_forward = layer.attention, layer.feed_forward
    reading = [attention.query, attention.key, attention.value] if attention.num_heads else []
    entry = steps_for(ranges[f"{name}.attention"], [linear.weight for linear in reading] or [torch.ones(1, 1)])
    middle = steps_for(ranges[f"{name}.feed_forward"], [feed_forward.up.weight])
    attention_norm, feed_forward_norm = (
        cast(nn.LayerNorm, copy.deepcopy(norm)) for norm in (layer.attention_norm, layer.feed_forward_norm)
    )
    _put_in_steps(attention_norm, middle)
    up = _linear(feed_forward.up.weight, feed_forward.up.bias, middle)
    down = QuantizedLinear(feed_forward.down.weight.double(), zero_point=DOWN_ZERO_POINT)
    bias = feed_forward.down.bias - middle.size * middle.offset
    lowest = LOWEST_ACTIVATION[feed_forward.activation_name]
    made = QuantizedLayer(
        attention=_quantize_attention(attention, name, ranges, entry),
        attention_scale=entry.size,
        attention_norm=attention_norm,
        feed_forward=QuantizedFeedForward(up, down, bias, feed_forward.activation_name, lowest),
        feed_forward_scale=middle.size,
        feed_forward_norm=feed_forward_norm,
    )
    return made, entry


def _quantize_attention(
    attention: MultiHeadAttention, name: str, ranges: Mapping[str, Range], entry: Steps
) -> QuantizedAttention | ConstantAttention:
    residual = entry.size * entry.offset  # what the scaled residual stream has too much
    if not attention.num_heads:
        return ConstantAttention(attention.output_bias - residual)
    context = steps_for(ranges[f"{name}.attention.output"], [attention.output.weight])
    query = _linear(attention.query.weight, attention.query.bias, entry)
    key = _linear(attention.key.weight, None, entry)  # a key bias cancels in the softmax
    value_bias = attention.value.bias / context.size + context.offset
    value = _linear(attention.value.weight / context.size[:, None], value_bias, entry)
    output = _linear(attention.output.weight, attention.output.bias - residual, context)
    return QuantizedAttention(
        query, key, value, output, null_context=context.offset, num_heads=attention.num_heads, scale=attention.scale
    )


def _linear(weight: Tensor, bias: Tensor | None, steps: Steps) -> QuantizedLinear:
    """A product that reads a place in steps; the offset's share, exact for the rounded weight, joins the bias."""
    made = QuantizedLinear(weight.double() * steps.size)
    constant = made.dequantized() @ steps.offset
    made.bias = ((0 if bias is None else bias.double()) - constant).float()
    return made


def _put_in_steps(norm: nn.LayerNorm | nn.Linear, steps: Steps) -> None:
    """Folds `x / size + offset` into the norm, or the product, that gives x."""
    size = steps.size[:, None] if isinstance(norm, nn.Linear) else steps.size
    norm.weight = nn.Parameter((norm.weight.double() / size).float(), requires_grad=False)
    norm.bias = nn.Parameter((norm.bias.double() / steps.size + steps.offset).float(), requires_grad=False)
