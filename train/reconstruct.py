"""Repairs a network that lost heads in closed form, layer by layer, before anything is trained.

From the first layer to the last, the attention's output projection and then the feed-forward's last product are fitted
so that the residual stream behind them is that of the whole network again, on texts. The inputs of the fit are what the
repaired layers below give, so that each layer also makes good what those could not (Frantar et al. 2023, "GPTAQ" and
others for quantisation; Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers", for masks).
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from export.errors import UnsupportedModel
from export.heads.importance import drift, embed
from export.pruning.removal import remove_heads
from export.texts import TextBatch, TokenizedText, batches
from model.config import EncoderConfig
from model.encoder import Encoder
from train.embedding import encoder_layers

RIDGE = 1e-3  # of the mean square of an input; keeps weights where the data say little

# A setting that does not stand here must have its default: one that is added later is refused until it is known here.
# `sandwich_norm` norms what a layer adds, so the fit would take it for the sum; `shared_layers` would fit one weight
# to several layers.
ANY_VALUE = {
    *("vocab_size", "hidden_size", "num_heads", "d_k", "d_v", "intermediate_size", "max_positions"),
    *("type_vocab_size", "token_size", "activation", "gated", "up_bias", "down_bias", "attention_bias", "output_bias"),
    *("norm", "norm_bias", "norm_eps", "pre_norm", "embedding_norm", "first_attention_norm", "final_norm"),
    *("positions", "attention_positions", "causal", "rope_theta", "rope_divisor", "rope_scaling", "local_rope_theta"),
    *("local_layers", "window", "relative_buckets", "relative_distance", "original_heads", "kept_heads"),
    *("num_key_value_heads", "query_groups", "score_scale", "query_key_norm"),
    *("value_activation", "value_residual", "learned_value_residual", "output_gate", "head_dropout"),
    *("pooling", "projections", "task", "task_settings"),
}


def require_fittable(config: EncoderConfig) -> None:
    """Refuses a network with a setting that the fit does not know.

    Raises:
        UnsupportedModel: the message names the settings.
    """
    unknown = [
        f"{field.name} {getattr(config, field.name)!r:.100}"
        for field in fields(config)
        if field.name not in ANY_VALUE and getattr(config, field.name) != field.default
    ]
    if unknown:
        raise UnsupportedModel(f"training without some heads knows no form of {', '.join(unknown)}: take another model")


class LeastSquares:
    """Collects inputs F [T, n] and outputs that are missing M [T, m]; solves for the change of the weights.

    The change minimises `sum_t w_t ||F_t change - M_t||^2 + ridge ||change||^2`, so that without evidence weights stay
    as they are. A column of ones is the bias, if the layer has one.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        self.bias = bias
        self.gram = torch.zeros(inputs + bias, inputs + bias, dtype=torch.float64)
        self.cross = torch.zeros(inputs + bias, outputs, dtype=torch.float64)

    def add(self, inputs: Tensor, missing: Tensor, weights: Tensor) -> None:
        """Takes in tokens: inputs [T, n], missing [T, m], weights [T]."""
        if self.bias:
            inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=1)
        weighted = (inputs * weights[:, None]).T  # [n, T]
        self.gram += (weighted @ inputs).double()
        self.cross += (weighted @ missing).double()

    def solve(self, ridge: float = RIDGE) -> Tensor:
        """The change of the weights [n (+ 1 for the bias), m]."""
        change: Tensor = torch.linalg.solve(self.ridged(ridge), self.cross)
        return change

    def ridged(self, ridge: float = RIDGE) -> Tensor:
        """The Gram matrix with the ridge on its diagonal."""
        return self.gram + ridge * self.gram.diagonal().mean() * torch.eye(len(self.gram), dtype=torch.float64)

    def change(self, layer: nn.Linear) -> None:
        """Adds the solution to a layer's weights in place."""
        change = self.solve().to(layer.weight.dtype)
        with torch.no_grad():
            if layer.bias is not None:
                layer.bias.add_(change[-1])
            layer.weight.add_(change[: layer.in_features].T)


def removal_costs(gram: Tensor, weights: Tensor, *, blocks: int, size: int) -> tuple[list[int], list[float]]:
    """In which order blocks of inputs are best left out, if the rest is fitted again after each.

    The optimal brain surgeon for blocks (Hassibi and Stork 1993; Frantar and Alistarh 2022): without block q, and with
    the best other weights, the squared error grows by `tr(W_q^T [(G^-1)_qq]^-1 W_q)`.

    Args:
        gram: [n, n] of the inputs; the last rows may be others', such as the bias's, which stay.
        weights: [n, m], exact for the data that `gram` is from.
        blocks: how many there are, one behind the other from the first input on.
        size: inputs of a block.

    Returns:
        Blocks in the order of removal, and the error that each adds to those before it.
    """
    left = {index: torch.arange(index * size, (index + 1) * size) for index in range(blocks)}
    inverse, weights = torch.linalg.inv(gram), weights.double().clone()
    order, costs = [], []
    while left:
        found = {index: float(_cost(inverse, weights, rows)) for index, rows in left.items()}
        best = min(found, key=found.__getitem__)
        order.append(best)
        costs.append(found[best])
        rows = left.pop(best)
        repair = inverse[:, rows] @ torch.linalg.inv(inverse[rows][:, rows])  # [n, size]
        weights -= repair @ weights[rows]
        inverse = inverse - repair @ inverse[rows]
    return order, costs


def _cost(inverse: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
    cost: Tensor = (weights[rows] * torch.linalg.solve(inverse[rows][:, rows], weights[rows])).sum()
    return cost


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
        """Replaces the kept outputs of the layer below by this layer's."""
        self.hidden = [self.trace(layer, batch).output for batch in range(len(self.hidden))]

    def _keeper(self, layer: int) -> Any:
        def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            del module
            # Hidden states are kept of the first layer only: the others' are made again from its.
            self._calls[layer].append(inputs if layer == 0 else (None, *inputs[1:]))

        return keep


def token_weights(stream: Tensor) -> Tensor:
    """What an error of a token's residual stream [T, D] weighs behind the next norm: one over its variance, [T]."""
    return 1 / stream.var(dim=1, correction=0).clamp(min=1e-12)


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


def order_by_reconstruction(encoder: Encoder, texts: Sequence[TokenizedText]) -> list[int]:
    """Heads in the order in which they are best removed, counted from the first layer's first.

    Within a layer `removal_costs` orders the heads on the contexts of the texts' tokens. Between layers a squared
    error of the residual stream is weighed by how far it moves the embedding: the drift without the first half of the
    layer's order, the rest fitted, over the error that this leaves.
    """
    whole = embed(encoder, texts)
    fits = _contexts(encoder, texts)
    queues: dict[int, list[tuple[float, int]]] = {}
    for layer, fit in tqdm(fits.items(), desc="choosing", unit="layer", leave=False):
        order, costs = removal_costs(
            fit.ridged(), _weights(encoder, layer), blocks=encoder.config.num_heads[layer], size=encoder.config.d_v
        )
        half = max(1, len(order) // 2)
        drifted = float(drift(embed(_without(encoder, layer, order[:half], fit), texts), whole).mean())
        weight = drifted / max(sum(costs[:half]), 1e-30)
        first = encoder.config.head_span(layer).start
        queues[layer] = [(weight * cost, first + head) for head, cost in zip(order, costs, strict=True)]
    merged: list[int] = []
    while queues:
        layer = min(queues, key=lambda index: queues[index][0])
        merged.append(queues[layer].pop(0)[1])
        if not queues[layer]:
            del queues[layer]
    return merged


def _contexts(encoder: Encoder, texts: Sequence[TokenizedText]) -> dict[int, LeastSquares]:
    """The Gram matrix of each layer's contexts, for layers with heads."""
    together = list(batches(texts, 0))
    runner = LayerRunner(encoder, together)
    fits: dict[int, LeastSquares] = {}
    for layer, module in enumerate(runner.layers):
        if module.attention.num_heads:
            output = module.attention.output
            fits[layer] = LeastSquares(output.in_features, output.out_features, bias=output.bias is not None)
            for batch in range(len(together)):
                trace = runner.trace(layer, batch)
                assert trace.context is not None  # noqa: S101 - a layer with heads has one
                stream = trace.attention_sum
                fits[layer].add(trace.context, torch.zeros_like(stream), token_weights(stream))
        runner.advance(layer)
    return fits


def _weights(encoder: Encoder, layer: int) -> Tensor:
    """The output projection as [H*V (+ 1 for the bias), D]."""
    output = encoder_layers(encoder)[layer].attention.output
    rows = [output.weight.T] if output.bias is None else [output.weight.T, output.bias[None]]
    return torch.cat(rows).double()


def _without(encoder: Encoder, layer: int, heads: Sequence[int], fit: LeastSquares) -> Encoder:
    """The network without some heads of a layer, its output projection fitted to what it gave with them."""
    config = encoder.config
    cut = remove_heads(encoder, [config.head_span(layer).start + head for head in heads])
    if len(heads) == config.num_heads[layer]:
        return cut
    kept = torch.tensor([row for row in range(len(fit.gram)) if row // config.d_v not in heads])
    gram = fit.ridged()
    fitted = torch.linalg.solve(gram[kept][:, kept], gram[kept] @ _weights(encoder, layer)).float()
    output = encoder_layers(cut)[layer].attention.output
    with torch.no_grad():
        if output.bias is not None:
            output.bias.copy_(fitted[-1])
        output.weight.copy_(fitted[: output.in_features].T)
    return cut


def _has_bias(layer: nn.Linear) -> bool:
    return layer.bias is not None
