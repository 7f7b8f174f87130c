"""Repairs a network that lost heads in closed form, layer by layer, before anything is trained.

From the first layer to the last, the attention's output projection and then the feed-forward's last product are fitted
so that the residual stream behind them is that of the whole network again, on texts. The inputs of the fit are what the
repaired layers below give, so that each layer also makes good what those could not (Frantar et al. 2023, "GPTAQ" and
others for quantisation; Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers", for masks).
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from export.errors import UnsupportedModel
from export.texts import TextBatch
from model.config import EncoderConfig
from model.encoder import Encoder
from train.embedding import encoder_layers

UnitKind = Literal["heads", "neurons"]
RIDGE = 1e-3  # of the mean square of an input; keeps weights where the data say little

# A setting that does not stand here must have its default: one that is added later is refused until it is known here.
# `sandwich_norm` norms what a layer adds, so the fit would take it for the sum; `shared_layers` would fit one weight
# to several layers.
ANY_VALUE = {
    *("vocab_size", "hidden_size", "num_heads", "d_k", "d_v", "max_positions"),
    *("intermediate_size", "intermediate_sizes"),
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


class LayerTrace(NamedTuple):
    """One layer's run on one batch of T tokens."""

    context: Tensor | None  # [T, H*V], the input of the attention's output projection; None without heads
    attention_sum: Tensor  # [T, D], the residual stream with what attention added
    inner: Tensor  # [T, intermediate], the input of the feed-forward's last product
    feed_forward_sum: Tensor  # [T, D], the residual stream with what the feed-forward added
    output: Tensor  # [T, D], of the layer

    def of(self, kind: UnitKind) -> tuple[Tensor, Tensor]:
        """What the last product of attention (`heads`) or feed-forward reads, and the stream with what it added."""
        if kind == "neurons":
            return self.inner, self.feed_forward_sum
        assert self.context is not None  # noqa: S101 - only layers with heads are asked
        return self.context, self.attention_sum


class LayerRunner:
    """Runs a network a layer at a time on the same batches; the outputs of the layer below are kept, not made again."""

    def __init__(self, encoder: Encoder, batches: Sequence[TextBatch]) -> None:
        """Runs the network once, to see what its layers are called with."""
        self.layers = encoder_layers(encoder)
        self._calls: list[list[tuple[Any, ...]]] = [[] for _ in self.layers]
        with torch.inference_mode(), ExitStack() as hooks:
            for index, layer in enumerate(self.layers):
                hooks.enter_context(layer.register_forward_pre_hook(self._keeper(index)))
            for batch in batches:
                encoder.use("sdpa")(batch.input_ids, batch.lengths, token_type_ids=batch.token_type_ids)
        self.hidden = [call[0] for call in self._calls[0]]

    def trace(self, layer: int, batch: int) -> LayerTrace:
        """What a layer computes from the kept outputs of the layer below it."""
        seen: dict[str, Tensor] = {}
        module, hidden = self.layers[layer], self.hidden[batch]
        hooks = [
            module.attention.register_forward_hook(lambda _, __, output: seen.update(attended=output[0])),
            module.feed_forward.register_forward_hook(lambda _, x, output: seen.update(before=x[0], added=output)),
            module.feed_forward.down.register_forward_pre_hook(lambda _, inputs: seen.update(inner=inputs[0])),
        ]
        if module.attention.num_heads:
            hooks.append(module.attention.output.register_forward_pre_hook(lambda _, x: seen.update(context=x[0])))
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


def reconstruct(
    student: Encoder, teacher: Encoder, batches: Sequence[TextBatch], layers: Sequence[int] | None = None
) -> None:
    """Fits the student's output and down projections in place to the teacher's residual streams.

    Args:
        student: the network without some parts.
        teacher: the whole network.
        batches: texts to fit on.
        layers: of the teacher, one a layer of the student, ascending; None for all. The layer before a missing one also
            stands for it.
    """
    own, whole = LayerRunner(student, batches), LayerRunner(teacher, batches)
    starts = list(range(len(whole.layers)) if layers is None else layers)
    for layer in range(starts[0]):
        whole.advance(layer)
    ends = last_matched(starts, len(whole.layers))
    for layer, (start, end) in enumerate(
        zip(tqdm(starts, desc="fitting", unit="layer", leave=False), ends, strict=True)
    ):
        expected = [whole.trace(start, batch) for batch in range(len(batches))]
        if own.layers[layer].attention.num_heads:
            _fit(own, layer, expected, "heads")
        else:
            _fit_bias(own, layer, expected)
        for further in range(start + 1, end + 1):
            whole.hidden = [trace.output for trace in expected]
            expected = [whole.trace(further, batch) for batch in range(len(batches))]
        _fit(own, layer, expected, "neurons")
        own.advance(layer)
        whole.hidden = [trace.output for trace in expected]


def last_matched(layers: Sequence[int], count: int) -> list[int]:
    """The last of `count` layers that each of some layers stands for: the one before the next of them."""
    return [following - 1 for following in [*layers[1:], count]]


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


def _fit(own: LayerRunner, layer: int, expected: Sequence[LayerTrace], kind: UnitKind) -> None:
    module = own.layers[layer]
    product = module.attention.output if kind == "heads" else module.feed_forward.down
    fit = LeastSquares(product.in_features, product.out_features, bias=product.bias is not None)
    for batch, whole in enumerate(expected):
        inputs, stream = own.trace(layer, batch).of(kind)
        _, wanted = whole.of(kind)
        fit.add(inputs, wanted - stream, token_weights(wanted))
    fit.change(product)
