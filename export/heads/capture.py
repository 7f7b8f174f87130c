"""One forward pass of the PyTorch encoder that keeps what the report looks at: weights, and what they move."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from export.heads.tokens import TextBatch
from model.analysis.arrays import Float32Array
from model.attention import MultiHeadAttention
from model.encoder import Encoder


@dataclass(frozen=True, slots=True)
class HeadsOfText:
    """All heads of a network on one text, layer after layer in one axis of H heads altogether.

    Attributes:
        weights: [H, n, n].
        output_norms: [H, n], length of what each head adds to each token, ||context_h W_O,h||.
        value_norms: [H, n], length of what each token would add if a head looked at nothing else, ||v_h W_O,h||.
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
        self._grams = [output_gram(attention) for attention in self._attentions]

    def run(self, batch: TextBatch) -> Iterator[HeadsOfText]:
        """The heads of every text of a batch, in its order; one text's arrays at a time are new."""
        values: list[Tensor] = []
        contexts: list[Tensor] = []
        with ExitStack() as hooks, torch.inference_mode():
            for attention in self._attentions:
                hooks.callback(attention.value.register_forward_hook(lambda *call: values.append(call[2])).remove)
                hooks.callback(
                    attention.output.register_forward_pre_hook(lambda *call: contexts.append(call[1][0])).remove
                )
            attentions = [w for w in self._encoder(batch.input_ids, batch.lengths).attentions if w is not None]
            value_norms = _norms(values, self._grams)  # [T, H]
            output_norms = _norms(contexts, self._grams)
        weights = [layer.numpy() for layer in attentions if layer.numel()]
        ends = np.cumsum(batch.lengths.numpy())
        for row, (end, length) in enumerate(zip(ends.tolist(), batch.lengths.tolist(), strict=True)):
            tokens = slice(end - length, end)
            yield HeadsOfText(
                np.concatenate([layer[row, :, :length, :length] for layer in weights]),
                np.ascontiguousarray(output_norms[tokens].T),
                np.ascontiguousarray(value_norms[tokens].T),
            )


def output_gram(attention: MultiHeadAttention) -> Tensor:
    """W_O,h W_O,h^T of each head, [H, V, V] in float64: ||x W_O,h||^2 = x W_O,h W_O,h^T x^T without a vector of D."""
    rows = attention.output.weight.detach().double().T.reshape(attention.num_heads, -1, attention.output.out_features)
    gram: Tensor = rows @ rows.transpose(1, 2)  # rows: [H, V, D]
    return gram


def _norms(vectors: list[Tensor], grams: list[Tensor]) -> Float32Array:
    """||x_h W_O,h|| of every token and head, from each layer's [T, H*V]: [T, H altogether]."""
    squared = []
    for x, gram in zip(vectors, grams, strict=True):
        by_head = x.double().reshape(len(x), *gram.shape[:2])  # [T, H, V]
        squared.append(torch.einsum("thv,hvw,thw->th", by_head, gram, by_head))
    norms: Float32Array = torch.cat(squared, dim=1).clamp(min=0).sqrt().float().numpy()
    return norms
