"""Repairs a network that lost heads in closed form, layer by layer, before anything is trained.

From the first layer to the last, the attention's output projection and then the feed-forward's last product are fitted
so that the residual stream behind them is that of the whole network again, on texts. The inputs of the fit are what the
repaired layers below give, so that each layer also makes good what those could not (Frantar et al. 2023, "GPTAQ" and
others for quantisation; Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers", for masks).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from export.tokens import TextBatch
from model.encoder import Encoder
from train.embedding import encoder_layers
from train.least_squares import LeastSquares


class LayerTrace(NamedTuple):
    """One layer's run on one batch of T tokens.

    Attributes:
        context: [T, H*V], the input of the attention's output projection; None without heads.
        attention_sum: [T, D], the residual stream with what attention added.
        inner: [T, intermediate], the input of the feed-forward's last product.
        feed_forward_sum: [T, D], the residual stream with what the feed-forward added.
        output: [T, D], of the layer.
    """

    context: Tensor | None
    attention_sum: Tensor
    inner: Tensor
    feed_forward_sum: Tensor
    output: Tensor


class LayerRunner:
    """Runs a network a layer at a time on the same batches; the outputs of the layer below are kept, not made again."""

    def __init__(self, encoder: Encoder, batches: Sequence[TextBatch]) -> None:
        """Runs the network once, to see what its layers are called with."""
        self.layers = encoder_layers(encoder)
        self._calls: list[list[tuple[Any, ...]]] = [[] for _ in self.layers]
        hooks = [layer.register_forward_pre_hook(self._keeper(index)) for index, layer in enumerate(self.layers)]
        with torch.inference_mode():
            for batch in batches:
                encoder.use("sdpa")(batch.input_ids, batch.lengths, token_type_ids=batch.token_type_ids)
        for hook in hooks:
            hook.remove()
        self.hidden = [call[0] for call in self._calls[0]]

    def trace(self, layer: int, batch: int) -> LayerTrace:
        """What a layer computes from the kept outputs of the layer below it."""
        seen: dict[str, Tensor] = {}
        module, hidden = self.layers[layer], self.hidden[batch]
        hooks = [
            module.attention.register_forward_hook(lambda _, __, output: seen.update(attended=output[0])),
            module.feed_forward.register_forward_hook(
                lambda _, inputs, output: seen.update(before=inputs[0], added=output)
            ),
            module.feed_forward.down.register_forward_pre_hook(lambda _, inputs: seen.update(inner=inputs[0])),
        ]
        if module.attention.num_heads:
            hooks.append(
                module.attention.output.register_forward_pre_hook(lambda _, inputs: seen.update(context=inputs[0]))
            )
        with torch.inference_mode():
            output, _ = module(hidden, *self._calls[layer][batch][1:])
        for hook in hooks:
            hook.remove()
        attention_sum = hidden + seen["attended"]
        before = attention_sum if module.pre_norm else seen["before"]
        return LayerTrace(seen.get("context"), attention_sum, seen["inner"], before + seen["added"], output)

    def advance(self, layer: int) -> None:
        """Keeps the layer's outputs in place of those of the layer below."""
        self.hidden = [self.trace(layer, batch).output for batch in range(len(self.hidden))]

    def _keeper(self, layer: int) -> Any:
        def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            del module
            # Hidden states are kept of the first layer only: the others' are made again from its.
            self._calls[layer].append(inputs if layer == 0 else (None, *inputs[1:]))

        return keep


def reconstruct(student: Encoder, teacher: Encoder, batches: Sequence[TextBatch]) -> None:
    """Fits the student's output and down projections in place to the teacher's residual streams."""
    own, whole = LayerRunner(student, batches), LayerRunner(teacher, batches)
    for layer in tqdm(range(len(own.layers)), desc="fitting", unit="layer", leave=False):
        expected = [whole.trace(layer, batch) for batch in range(len(batches))]
        _fit_attention(own, layer, expected)
        _fit_feed_forward(own, layer, expected)
        own.advance(layer)
        whole.hidden = [trace.output for trace in expected]


def _fit_attention(own: LayerRunner, layer: int, expected: Sequence[LayerTrace]) -> None:
    attention = own.layers[layer].attention
    if not attention.num_heads:
        _fit_bias(own, layer, expected)
        return
    fit = LeastSquares(attention.output.in_features, attention.output.out_features, bias=_has_bias(attention.output))
    for batch, whole in enumerate(expected):
        trace = own.trace(layer, batch)
        assert trace.context is not None  # noqa: S101 - a layer with heads has one
        fit.add(trace.context, whole.attention_sum - trace.attention_sum, token_weights(whole.attention_sum))
    fit.change(attention.output)


def _fit_bias(own: LayerRunner, layer: int, expected: Sequence[LayerTrace]) -> None:
    """All that a layer without heads can add is one vector, if its family has that."""
    bias = own.layers[layer].attention.output_bias
    if not isinstance(bias, nn.Parameter):
        return
    sums, total = torch.zeros_like(bias), 0.0
    for batch, whole in enumerate(expected):
        weights = token_weights(whole.attention_sum)
        sums += weights @ (whole.attention_sum - own.trace(layer, batch).attention_sum)
        total += float(weights.sum())
    with torch.no_grad():
        bias.add_(sums / total)


def _fit_feed_forward(own: LayerRunner, layer: int, expected: Sequence[LayerTrace]) -> None:
    down = own.layers[layer].feed_forward.down
    fit = LeastSquares(down.in_features, down.out_features, bias=_has_bias(down))
    for batch, whole in enumerate(expected):
        trace = own.trace(layer, batch)
        fit.add(trace.inner, whole.feed_forward_sum - trace.feed_forward_sum, token_weights(whole.feed_forward_sum))
    fit.change(down)


def token_weights(stream: Tensor) -> Tensor:
    """What an error of a token's residual stream [T, D] weighs behind the next norm: one over its variance, [T]."""
    return 1 / stream.var(dim=1, correction=0).clamp(min=1e-12)


def _has_bias(layer: nn.Linear) -> bool:
    return layer.bias is not None
