"""One forward pass of the PyTorch encoder that keeps what the report looks at: weights, and what they move."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

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
        self._grams = [output_gram(attention) for attention in self._attentions]

    def run(self, batch: TextBatch) -> Iterator[HeadsOfText]:
        """The heads of every text of a batch, in its order; one text's arrays at a time are new."""
        values = _Kept(len(self._attentions))
        contexts = _Kept(len(self._attentions))
        with ExitStack() as hooks, torch.inference_mode():
            for place, attention in enumerate(self._attentions):
                hooks.enter_context(values.of(attention, place))
                hooks.callback(attention.output.register_forward_pre_hook(contexts.hook(place)).remove)
            attentions = [w for w in self._encoder(batch.input_ids, batch.lengths).attentions if w is not None]
            value_norms = _norms(values.found, self._grams)  # [T, H]
            output_norms = _norms(contexts.found, self._grams)
        weights = [layer.numpy() for layer in attentions if layer.numel()]
        ends = np.cumsum(batch.lengths.numpy())
        for row, (end, length) in enumerate(zip(ends.tolist(), batch.lengths.tolist(), strict=True)):
            tokens = slice(end - length, end)
            yield HeadsOfText(
                np.concatenate([layer[row, :, :length, :length] for layer in weights]),
                np.ascontiguousarray(output_norms[tokens].T),
                np.ascontiguousarray(value_norms[tokens].T),
            )


class _Kept:
    """One tensor a layer, kept while the network runs; where a layer computes it twice, the last."""

    def __init__(self, layers: int) -> None:
        self.found = [torch.empty(0)] * layers

    @contextmanager
    def of(self, attention: MultiHeadAttention, place: int) -> Iterator[None]:
        """Keeps what a layer's attention weighs [T, H*V], after all that happens to values on the way."""
        compute = attention.values

        def values(hidden: Tensor, first_values: Tensor | None = None) -> Tensor:
            self.found[place] = compute(hidden, first_values)
            return self.found[place]

        attention.values = values  # type: ignore[method-assign]  # on this object only, and taken back below
        try:
            yield
        finally:
            del attention.values

    def hook(self, place: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        """Keeps what comes into a module."""

        def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            del module
            self.found[place] = inputs[0]

        return keep


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
