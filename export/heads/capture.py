"""One forward pass of the PyTorch encoder that keeps what the report looks at: weights, and what they move."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from export.heads.tokens import TextBatch
from model.analysis.arrays import Float32Array
from model.attention import MultiHeadAttention
from model.encoder import Encoder
from model.value_norms import output_rows


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
        self._grams = [output_gram(attention) for attention in self._attentions]

    def run(self, batch: TextBatch) -> Iterator[HeadsOfText]:
        """The heads of every text of a batch, in its order; one text's arrays at a time are new."""
        contexts = [torch.empty(0)] * len(self._attentions)
        with ExitStack() as hooks, torch.inference_mode():
            for place, attention in enumerate(self._attentions):
                hooks.callback(attention.output.register_forward_pre_hook(_keep(contexts, place)).remove)
            found = self._encoder(batch.input_ids, batch.lengths, norm_layers=self._all_layers)
            output_norms = _norms(contexts, self._grams)  # [T, H]
        weights = [layer.numpy() for layer in found.attentions if layer is not None and layer.numel()]
        value_norms = [layer.float().numpy() for layer in found.value_norms if layer is not None and layer.numel()]
        ends = np.cumsum(batch.lengths.numpy())
        for row, (end, length) in enumerate(zip(ends.tolist(), batch.lengths.tolist(), strict=True)):
            yield HeadsOfText(
                np.concatenate([layer[row, :, :length, :length] for layer in weights]),
                np.ascontiguousarray(output_norms[end - length : end].T),
                np.concatenate([layer[row, :, :length] for layer in value_norms]),
            )


def _keep(kept: list[Tensor], place: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """A hook that keeps what comes into a module."""

    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        del module
        kept[place] = inputs[0]

    return hook


def output_gram(attention: MultiHeadAttention) -> Tensor:
    """W_O,h W_O,h^T of each head, [H, V, V] in float64: ||x W_O,h||^2 = x W_O,h W_O,h^T x^T without a vector of D."""
    rows = output_rows(attention.output.weight.detach().double(), attention.num_heads)  # [H, V, D]
    gram: Tensor = rows @ rows.transpose(1, 2)
    return gram


def _norms(vectors: list[Tensor], grams: list[Tensor]) -> Float32Array:
    """||x_h W_O,h|| of every token and head, from each layer's [T, H*V]: [T, H altogether]."""
    squared = []
    for x, gram in zip(vectors, grams, strict=True):
        by_head = x.double().reshape(len(x), *gram.shape[:2])  # [T, H, V]
        squared.append(torch.einsum("thv,hvw,thw->th", by_head, gram, by_head))
    norms: Float32Array = torch.cat(squared, dim=1).clamp(min=0).sqrt().float().numpy()
    return norms
