"""Chooses the heads, feed-forward neurons and layers that go so that a network is as much faster as asked.

A multiple-choice knapsack takes, for each layer, the heads and neurons that stay, by the time of a layer's parts
(`train.costs`) and what leaving units out moves (`train.removal`); whole layers leave by trial, as errors of layers do
not add up. Xia et al. 2022 (CoFi, arXiv 2204.00408) learn masks of the same units instead.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor
from tqdm import tqdm

from export.checkpoint import build_encoder
from export.heads.importance import drift, embed
from export.pruning.removal import remove_heads
from export.texts import TextBatch, TokenizedText, batches
from model.analysis.arrays import Float64Array
from model.config import EncoderConfig
from model.encoder import Encoder
from train.costs import Costs, measure_costs, time_networks
from train.distil import fields_of_layers
from train.errors import RunError
from train.reconstruct import last_matched, reconstruct
from train.removal import Removal, removals
from train.settings import KINDS, CostPrecision, Kind

BLOCK = 32  # neurons that go together: what a vector unit multiplies at once, or two of them
JUDGED = 100  # texts that a trial is judged on, at most a quarter of all
FITTED = 250  # texts that a trial is fitted on
STEPS = 1000  # that the knapsack divides the time into
TRIES, CLOSE = 3, 0.02  # networks that are timed, and how far a speed may be from the one asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What stays of a network."""

    layers: tuple[int, ...]  # of the whole network, ascending
    heads: tuple[tuple[int, ...], ...]  # of each of these layers, ascending
    neurons: tuple[tuple[int, ...], ...]  # of each of these layers' feed-forward, ascending

    def describe_removed(self, config: EncoderConfig) -> dict[str, Any]:
        """What a network lost, as JSON types: heads as [layer, head], neurons a layer that stays, layers."""
        kept = list(zip(self.layers, self.heads, self.neurons, strict=True))
        return {
            "removed": [
                [layer, h] for layer, heads, _ in kept for h in range(config.num_heads[layer]) if h not in heads
            ],
            "removed_neurons": [config.inner_size(layer) - len(neurons) for layer, _, neurons in kept],
            "removed_layers": [layer for layer in range(config.num_layers) if layer not in self.layers],
        }

    @classmethod
    def read(cls, removed: Mapping[str, Any], config: EncoderConfig) -> "Shape":
        """The shape that `describe_removed` described, but for which neurons stay: the first ones; all of `{}`."""
        layers = tuple(layer for layer in range(config.num_layers) if layer not in removed.get("removed_layers", ()))
        gone = removed.get("removed_neurons", [0] * len(layers))
        heads = [
            [h for h in range(config.num_heads[layer]) if [layer, h] not in removed.get("removed", ())]
            for layer in layers
        ]
        neurons = [range(config.inner_size(layer) - count) for layer, count in zip(layers, gone, strict=True)]
        return cls(layers=layers, heads=tuple(map(tuple, heads)), neurons=tuple(map(tuple, neurons)))


def apply_shape(encoder: Encoder, shape: Shape) -> Encoder:
    """The network with what a shape keeps, sharing nothing with the whole one.

    Layers with a norm behind them (post-norm) take the norm of the last layer that they stand for.
    """
    config, layers = encoder.config, shape.layers
    gone = [
        config.head_span(layer).start + head
        for layer, heads in zip(layers, shape.heads, strict=True)
        for head in set(range(config.num_heads[layer])) - set(heads)
    ]
    cut = remove_heads(encoder, gone) if gone else encoder
    whole, state = cut.state_dict(), {}
    for name, tensor in whole.items():
        index, _, rest = name.removeprefix("layers.").partition(".")
        if not name.startswith("layers."):
            state[name] = tensor.clone()
        elif int(index) in layers:
            place = layers.index(int(index))
            state[f"layers.{place}.{rest}"] = _of_neurons(rest, tensor, shape.neurons[place])
    if not config.pre_norm:
        for place, last in enumerate(last_matched(layers, config.num_layers)):
            norm = f"layers.{last}.feed_forward_norm."
            for name in [name for name in whole if name.startswith(norm)]:
                state[f"layers.{place}.feed_forward_norm.{name.removeprefix(norm)}"] = whole[name].clone()
    sizes = tuple(map(len, shape.neurons))
    fields = fields_of_layers(cut.config, layers) | {
        "shared_layers": (),
        "intermediate_size": sizes[0],
        "intermediate_sizes": () if len(set(sizes)) == 1 else sizes,
    }
    return build_encoder(replace(cut.config, **fields), state)


def _of_neurons(name: str, tensor: Tensor, kept: Sequence[int]) -> Tensor:
    """A layer's tensor with some of the neurons, if it is one of the feed-forward's."""
    if name.startswith(("feed_forward.up.", "feed_forward.gate.")):
        return tensor[list(kept)]
    return tensor[:, list(kept)] if name == "feed_forward.down.weight" else tensor.clone()


def choose_shape(
    encoder: Encoder, texts: Sequence[TokenizedText], faster: float, only: Sequence[Kind], precision: CostPrecision
) -> tuple[dict[str, Any], Shape]:
    """What is removed for a speed, for the record, with the speed that was then measured; and what stays.

    The table of costs can be wrong by a tenth. Where the chosen network is faster or slower than the table says, one is
    chosen again for as much less or more.
    """
    costs = measure_costs(encoder.config, texts, precision)
    choice = ShapeChoice(encoder, texts, costs)
    tried: list[tuple[float, float, Shape]] = []
    by_table = faster
    while len(tried) < TRIES:
        try:
            shape, estimated = choice.choose(by_table, only)
        except RunError:
            if not tried:
                raise
            break
        whole, cut = time_networks([encoder, apply_shape(encoder, shape)], texts, precision)
        tried.append((whole / cut, estimated, shape))
        before, by_table = by_table, faster * estimated * cut / whole
        if by_table <= 1 or abs(by_table / before - 1) <= CLOSE:
            break
    measured, estimated, shape = min(tried, key=lambda one: (one[0] < (1 - CLOSE) * faster, abs(one[0] - faster)))
    speed = {
        "asked": faster,
        "only": list(only),
        "precision": precision,
        "estimated": round(estimated, 3),
        "measured": round(measured, 3),
        "microseconds": costs.to_dict(),
    }
    sys.stderr.write(
        f"{' '.join(str(len(heads)) for heads in shape.heads)} heads and "
        f"{' '.join(str(len(neurons)) for neurons in shape.neurons)} neurons stay: {measured:.2f} times as fast "
        f"({estimated:.2f} by the table of costs)\n"
    )
    return {**shape.describe_removed(encoder.config), "chosen_by": "speed", "speed": speed}, shape


class ShapeChoice:
    """Finds the shape that reaches a speed at the least error."""

    def __init__(self, encoder: Encoder, texts: Sequence[TokenizedText], costs: Costs) -> None:
        """The last of the texts judge."""
        self.encoder, self.config, self.costs = encoder, encoder.config, costs
        self.whole, judged = Shape.read({}, self.config), min(JUDGED, len(texts) // 4)
        self.judged = texts[-judged:]
        self.fitted: list[TextBatch] = list(batches(texts[: min(FITTED, len(texts) - judged)], 0))
        self.expected = embed(encoder, self.judged)
        found = removals(encoder, texts[:-judged], self.judged, ("heads", "neurons"))
        self.removals: dict[tuple[str, int], Removal] = {(removal.kind, removal.layer): removal for removal in found}

    def choose(self, faster: float, only: Sequence[Kind] = KINDS) -> tuple[Shape, float]:
        """The shape, and how many times faster it is by the table; RunError if it cannot be so fast."""
        whole = fastest = self._seconds(self.whole)
        best: tuple[float, Shape] | None = None
        for layers in self._kept_layers(only):
            options = [self._options(layer, only) for layer in layers]
            least = self.costs.rest + sum(float(seconds.min()) for seconds, _ in options)
            fastest = min(fastest, least)
            if least > whole / faster:
                continue
            shape = self._shape(layers, knapsack(options, whole / faster - self.costs.rest))
            error = self._try(shape)
            if best and error >= best[0]:
                break
            best = error, shape
        if best is None:
            raise RunError(
                f"--faster {faster:g} cannot be reached: without {', '.join(only)} the network is at most "
                f"{whole / fastest:.2f} times as fast here"
            )
        return best[1], whole / self._seconds(best[1])

    def _options(self, layer: int, only: Sequence[Kind]) -> tuple[Float64Array, Float64Array]:
        """Seconds and error of a layer that loses each number of heads and of neurons: both [heads + 1, blocks + 1]."""
        found = (self.removals.get((kind, layer)) if kind in only else None for kind in KINDS[:2])
        heads_lost, neurons_lost = (np.zeros(1) if removal is None else removal.rising_drifts() for removal in found)
        neurons_lost = neurons_lost[:-1:BLOCK] if len(neurons_lost) > 1 else neurons_lost  # some neurons stay
        heads = self.config.num_heads[layer] - np.arange(len(heads_lost), dtype=float)
        neurons = self.config.inner_size(layer) - BLOCK * np.arange(len(neurons_lost), dtype=float)
        errors = heads_lost[:, None] + neurons_lost[None]
        return self.costs.of_layer(*np.meshgrid(heads, neurons, indexing="ij")), errors

    def _shape(self, layers: Sequence[int], chosen: Sequence[tuple[int, int]]) -> Shape:
        heads, neurons = list(self.whole.heads), list(self.whole.neurons)
        for layer, (lost, blocks) in zip(layers, chosen, strict=True):
            for part, kind, count in ((heads, "heads", lost), (neurons, "neurons", BLOCK * blocks)):
                if count:
                    part[layer] = tuple(sorted(self.removals[kind, layer].order[count:]))
        of = [tuple(part[layer] for layer in layers) for part in (heads, neurons)]
        return Shape(layers=tuple(layers), heads=of[0], neurons=of[1])

    def _kept_layers(self, only: Sequence[Kind]) -> Iterator[tuple[int, ...]]:
        """All layers; then, one after the other, without the layer that moves the embedding least."""
        kept = self.whole.layers
        yield kept
        first = 0 if self.config.first_attention_norm and not self.config.value_residual else 1
        while "layers" in only and len(kept) > first + 1:
            fewer = [tuple(other for other in kept if other != layer) for layer in kept[first:]]
            shapes = [self._shape(layers, [(0, 0)] * len(layers)) for layers in fewer]
            tried = tqdm(shapes, desc=f"trying {len(kept) - 1} layers", unit="network", leave=False)
            kept = fewer[int(np.argmin([self._try(shape, fits=False) for shape in tried]))]
            yield kept

    def _try(self, shape: Shape, *, fits: bool = True) -> float:
        """The mean drift of a shape's embedding, after a short fit or as it is."""
        student = apply_shape(self.encoder, shape)
        if fits:
            reconstruct(student, self.encoder, self.fitted, shape.layers)
        return float(drift(embed(student, self.judged), self.expected).mean())

    def _seconds(self, shape: Shape) -> float:
        return self.costs.of_network(list(map(len, shape.heads)), list(map(len, shape.neurons)))


def knapsack(options: Sequence[tuple[Float64Array, Float64Array]], budget: float) -> list[tuple[int, int]]:
    """One option a layer of its seconds and errors, [heads, blocks] each, with the least errors within the budget.

    The sum of the least seconds is within it.
    """
    step = max(budget, 1e-12) / STEPS
    reached, choices = np.zeros(STEPS + 1), []
    for seconds, errors in options:
        best, choice = np.full(STEPS + 1, np.inf), np.zeros(STEPS + 1, dtype=np.int64)
        slots = np.ceil(seconds.ravel() / step - 1e-9).astype(int)
        for index, (slot, error) in enumerate(zip(slots, errors.ravel(), strict=True)):
            if slot > STEPS:
                continue
            tried = reached[: STEPS + 1 - slot] + error
            better = tried < best[slot:]
            best[slot:][better], choice[slot:][better] = tried[better], index
        reached = best
        choices.append((choice, slots))
    left, indices = STEPS, []
    if not np.isfinite(reached[left]):  # rounded up, the least seconds are above the budget by a step or two
        indices = [int(seconds.argmin()) for seconds, _ in options]
    else:
        for choice, slots in reversed(choices):
            indices.insert(0, int(choice[left]))
            left -= int(slots[indices[0]])
    return [divmod(index, seconds.shape[1]) for index, (seconds, _) in zip(indices, options, strict=True)]
