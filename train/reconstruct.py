"""Repairs a network that lost heads in closed form, layer by layer, before anything is trained.

Attention's output projection and then the feed-forward's last product are fitted so that the residual stream behind
them is the whole network's again, on what the repaired layers below give (Frantar et al. 2023, "GPTAQ" and others for
quantisation; Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers", for masks).
"""

from collections.abc import Mapping, Sequence
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

# Other settings must have their default, those too that are added later: the fit would take what `sandwich_norm` norms
# for the sum, and fit one weight of `shared_layers` to several layers.
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
    """Raises UnsupportedModel for a network with settings that the fit does not know, and names them."""
    unknown = [
        f"{field.name} {getattr(config, field.name)!r:.100}"
        for field in fields(config)
        if field.name not in ANY_VALUE and getattr(config, field.name) != field.default
    ]
    if unknown:
        raise UnsupportedModel(f"training without some heads knows no form of {', '.join(unknown)}: take another model")


class LeastSquares:
    """Collects inputs F [T, n] and outputs that are missing M [T, m]; solves for the change of the weights.

    It minimises `sum_t w_t ||F_t change - M_t||^2 + ridge ||change||^2`. A bias is a column of ones.
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
    """One layer's run on one batch of T tokens: what a part's last product reads, and the stream with what it added."""

    read: Mapping[UnitKind, Tensor]  # [T, H*V] of heads, if there are any, and [T, intermediate] of neurons
    streams: Mapping[UnitKind, Tensor]  # [T, D]
    output: Tensor  # [T, D], of the layer


class LayerRunner:
    """Runs a network a layer at a time on the same batches; the outputs of the layer below are kept, not made again."""

    def __init__(self, encoder: Encoder, batches: Sequence[TextBatch]) -> None:
        """Runs the network once, to see what its layers are called with."""
        self.layers = encoder_layers(encoder)
        self._calls: dict[nn.Module, list[tuple[Any, ...]]] = {layer: [] for layer in self.layers}
        self.hidden: list[Tensor] = []

        def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if module is self.layers[0]:
                self.hidden.append(inputs[0])  # the others' are made again from these
            self._calls[module].append(inputs[1:])

        with torch.inference_mode(), ExitStack() as hooks:
            for layer in self.layers:
                hooks.enter_context(layer.register_forward_pre_hook(keep))
            for batch in batches:
                encoder.use("sdpa")(batch.input_ids, batch.lengths, token_type_ids=batch.token_type_ids)

    def trace(self, layer: int, batch: int) -> LayerTrace:
        """What a layer computes from the kept outputs of the layer below it."""
        seen: dict[str, Any] = {}
        read: dict[Any, Tensor] = {}
        module, hidden = self.layers[layer], self.hidden[batch]
        hooks = [
            module.attention.register_forward_hook(lambda _, __, output: seen.update(attended=output[0])),
            module.feed_forward.register_forward_hook(lambda _, x, output: seen.update(before=x[0], added=output)),
            module.feed_forward.down.register_forward_pre_hook(lambda _, x: read.update(neurons=x[0])),
        ]
        if module.attention.num_heads:
            hooks.append(module.attention.output.register_forward_pre_hook(lambda _, x: read.update(heads=x[0])))
        with torch.inference_mode():
            output, _ = module(hidden, *self._calls[module][batch])
        for hook in hooks:
            hook.remove()
        attention_sum = hidden + seen["attended"]
        before = attention_sum if module.pre_norm else seen["before"]
        return LayerTrace(read, {"heads": attention_sum, "neurons": before + seen["added"]}, output)

    def advance(self, layer: int) -> None:
        """Replaces the kept outputs of the layer below by this layer's."""
        self.hidden = [self.trace(layer, batch).output for batch in range(len(self.hidden))]


def token_weights(stream: Tensor) -> Tensor:
    """What an error of a token's residual stream [T, D] weighs behind the next norm: one over its variance, [T]."""
    return 1 / stream.var(dim=1, correction=0).clamp(min=1e-12)


def reconstruct(
    student: Encoder, teacher: Encoder, batches: Sequence[TextBatch], layers: Sequence[int] | None = None
) -> None:
    """Fits the student's output and down projections in place to the teacher's residual streams.

    `layers` are the teacher's that the student has, ascending; None for all. One before a missing one stands for both.
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
        wanted = whole.streams["heads"]
        weights = token_weights(wanted)
        sums += weights @ (wanted - own.trace(layer, batch).streams["heads"])
        total += float(weights.sum())
    with torch.no_grad():
        bias.add_(sums / total)


def _fit(own: LayerRunner, layer: int, expected: Sequence[LayerTrace], kind: UnitKind) -> None:
    module = own.layers[layer]
    product = module.attention.output if kind == "heads" else module.feed_forward.down
    fit = LeastSquares(product.in_features, product.out_features, bias=product.bias is not None)
    for batch, whole in enumerate(expected):
        found, wanted = own.trace(layer, batch), whole.streams[kind]
        fit.add(found.read[kind], wanted - found.streams[kind], token_weights(wanted))
    fit.change(product)
