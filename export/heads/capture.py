"""Runs the PyTorch encoder and keeps what the report needs: attention weights, and norms of what they move."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from export.tokens import TextBatch
from model.analysis.arrays import Float32Array
from model.attention import MultiHeadAttention
from model.encoder import Encoder
from model.value_norms import output_rows, reduced_factor, value_norms


@dataclass(frozen=True, slots=True)
class HeadsOfText:
    """All heads of a network on one text, layer after layer in one axis of H heads altogether.

    Attributes:
        weights: [H, n, n].
        output_norms: [H, n], length of what each head adds to each token, ||context_h W_O,h||.
        value_norms: [H, n], length of what each token would add if a head looked at nothing else, ||v_h W_O,h||; before
            the output gate, where the network has one.
    """

    weights: Float32Array
    output_norms: Float32Array
    value_norms: Float32Array


class Capture:
    """Runs an encoder and hands out each text's heads."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder.use("eager")
        layers = [cast(MultiHeadAttention, layer.attention) for layer in encoder.layers]
        self._attentions = [attention for attention in layers if attention.num_heads]
        self._all_layers = torch.ones(len(layers), dtype=torch.bool)
        self._factors = [_output_factor(attention) for attention in self._attentions]

    def run(self, batch: TextBatch) -> Iterator[HeadsOfText]:
        """The heads of every text of a batch, in its order; one text's arrays at a time are new."""
        contexts = [torch.empty(0)] * len(self._attentions)
        with ExitStack() as hooks, torch.inference_mode():
            for place, attention in enumerate(self._attentions):
                hooks.callback(attention.output.register_forward_pre_hook(_keep(contexts, place)).remove)
            found = self._encoder(batch.input_ids, batch.lengths, norm_layers=self._all_layers)
            output_norms = _output_norms(contexts, self._factors)  # [H, T]
        weights = [layer.numpy() for layer in found.attentions if layer is not None and layer.numel()]
        value_norms = [layer.float().numpy() for layer in found.value_norms if layer is not None and layer.numel()]
        ends = np.cumsum(batch.lengths.numpy())
        for row, (end, length) in enumerate(zip(ends.tolist(), batch.lengths.tolist(), strict=True)):
            yield HeadsOfText(
                np.concatenate([layer[row, :, :length, :length] for layer in weights]),
                output_norms[:, end - length : end],
                np.concatenate([layer[row, :, :length] for layer in value_norms]),
            )


def _keep(kept: list[Tensor], place: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """A hook that keeps what comes into a module."""

    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        del module
        kept[place] = inputs[0]

    return hook


def _output_factor(attention: MultiHeadAttention) -> Tensor:
    """[H, V, V] in float64: gives contexts as long as the vectors that the heads add."""
    return reduced_factor(output_rows(attention.output.weight.detach().double(), attention.num_heads))


def _output_norms(contexts: list[Tensor], factors: list[Tensor]) -> Float32Array:
    """||context_h W_O,h|| of every head and token, [H altogether, T], from each layer's contexts [T, H*V]."""
    norms = [
        value_norms(context[None].double(), None, factor, torch.tensor(True))[0]
        for context, factor in zip(contexts, factors, strict=True)
    ]
    lengths: Float32Array = torch.cat(norms).float().numpy()
    return lengths
