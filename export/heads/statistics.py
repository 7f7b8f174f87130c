"""The statistics of every head over a corpus, a text at a time.

The statistics and patterns of `model.analysis.statistics`, and three of what heads move:

    output_norm          mean_i of ||sum_j a_ij f(x_j)||: length of what the head adds to a token
    special_norm_share   share of sum_ij a_ij ||f(x_j)|| that comes from special tokens (Kobayashi et al. 2020)
    weight_norm_ranks    Spearman over keys j between sum_i a_ij and sum_i a_ij ||f(x_j)||: below 1 where the head
                         looks at tokens that it takes little from

`Capture` runs the PyTorch encoder and keeps what the statistics need. Redundancy, which heads do the same, is the mean
Jensen-Shannon divergence of every two heads, with a tree and a map made of it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from export.heads.intervals import Estimate, estimate
from export.similarity import rank_correlations
from export.texts import TextBatch, TokenizedText
from model.analysis.arrays import Float32Array, Float64Array
from model.analysis.reductions import classical_scaling
from model.analysis.statistics import (
    STATISTICS,
    head_statistics,
    offset_rate,
    rare_token,
    sink,
    variability,
)
from model.attention import MultiHeadAttention
from model.config import EncoderConfig
from model.encoder import Encoder
from model.value_stream import output_rows, reduced_factor, value_norms

OFFSETS: Mapping[str, int] = {"previous_rate": -1, "self_rate": 0, "next_rate": 1}
MOVED = ("output_norm", "special_norm_share", "weight_norm_ranks")
REPORTED = (*STATISTICS, "sink", *OFFSETS, "rare_token", *MOVED, "variability")
FIRST_POSITIONS = 10  # as Vig & Belinkov: texts share few positions beyond them
ALIKE = 0.05  # nats, 7 % of ln 2: groups of heads whose mean divergence stays below are listed as alike


@dataclass(frozen=True, slots=True)
class HeadsOfText:
    """All heads of a network on one text, layer after layer in one axis of H heads altogether: weights [H, n, n].

    `output_norms` [H, n] are lengths of what each head adds to each token, ||context_h W_O,h||; `value_norms` [H, n] of
    what each token would add if a head looked at nothing else, ||v_h W_O,h||, before an output gate.
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
        self._factors = [  # [H, V, V] in float64: they give contexts as long as the vectors that the heads add
            reduced_factor(output_rows(attention.output.weight.detach().double(), attention.num_heads))
            for attention in self._attentions
        ]

    def run(self, batch: TextBatch) -> Iterator[HeadsOfText]:
        """The heads of every text of a batch, in its order; one text's arrays at a time are new."""
        contexts: list[Tensor] = []  # in the order that layers run
        with ExitStack() as hooks, torch.inference_mode():
            for attention in self._attentions:
                keep = attention.output.register_forward_pre_hook(lambda _, inputs: contexts.append(inputs[0]))
                hooks.callback(keep.remove)
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


def _output_norms(contexts: list[Tensor], factors: list[Tensor]) -> Float32Array:
    """||context_h W_O,h|| of every head and token, [H altogether, T], from each layer's contexts [T, H*V]."""
    norms = [
        value_norms(context[None].double(), None, factor, torch.tensor(True))[0]
        for context, factor in zip(contexts, factors, strict=True)
    ]
    lengths: Float32Array = torch.cat(norms).float().numpy()
    return lengths


class CorpusStatistics:
    """Takes texts one by one and estimates each statistic of each head."""

    def __init__(self, counts: Counter[int], config: EncoderConfig) -> None:
        """Starts with the corpus' token counts, which say what is rare, and the network, which says what heads see."""
        self._counts = counts
        self._sight: dict[str, Any] = {"causal": config.causal, "reach": np.repeat(config.reaches, config.num_heads)}
        self._values: dict[str, list[Float64Array | None]] = {name: [] for name in REPORTED}
        self._corners: list[Float32Array] = []

    def add(self, text: TokenizedText, heads: HeadsOfText, *, keep_corner: bool) -> None:
        """Takes one text; its first positions are kept in memory, for the variability, where `keep_corner` is set."""
        for name, values in self._of_text(text, heads).items():
            self._values[name].append(values)
        if keep_corner and len(text.ids) >= FIRST_POSITIONS:
            self._corners.append(heads.weights[:, :FIRST_POSITIONS, :FIRST_POSITIONS].copy())

    def estimates(self) -> dict[str, Estimate]:
        """Every statistic that some text defines, by name."""
        by_text = {**self._values, "variability": variability(np.stack(self._corners)) if self._corners else []}
        return {name: found for name, values in by_text.items() if (found := estimate(values))}

    def _of_text(self, text: TokenizedText, heads: HeadsOfText) -> dict[str, Float64Array | None]:
        weights = heads.weights
        counts = np.array([self._counts[token] for token in text.ids.tolist()])
        common = head_statistics(
            weights, token_ids=text.ids, special=text.special, punctuation=text.punctuation, **self._sight
        )
        return {
            **{name: None if values is None else values.astype(np.float64) for name, values in common.items()},
            "sink": sink(weights),
            **{name: offset_rate(weights, offset) for name, offset in OFFSETS.items()},
            "rare_token": rare_token(weights, counts, text.special),
            **_moved(text, heads),
        }


def _moved(text: TokenizedText, heads: HeadsOfText) -> dict[str, Float64Array | None]:
    received = heads.weights.sum(axis=1, dtype=np.float64)  # [H, n] by each key
    moved = received * heads.value_norms
    total = moved.sum(axis=-1)
    total = np.where(total > 0, total, np.nan)  # a head that moves nothing has no share of it
    return {
        "output_norm": heads.output_norms.mean(axis=-1, dtype=np.float64),
        "special_norm_share": moved[:, text.special].sum(axis=-1) / total,
        "weight_norm_ranks": rank_correlations(received, moved) if len(text.ids) > 2 else None,
    }


@dataclass(frozen=True, slots=True)
class Redundancy:
    """How unlike heads are, over so many texts.

    Attributes:
        divergences: [H, H] in nats, mean over queries, then texts.
        tree: [H-1, 4], average linkage in SciPy's form: two joined, at which height, heads below.
        order: [H], heads as the tree's leaves from left to right.
        groups: [H], number of the group of heads that are alike; a head like no other is alone in its group.
        points: [H, 2], classical scaling of the square roots of the divergences, which are a metric a query.
        stress: how wrong the map is, Kruskal's stress-1.
    """

    divergences: Float64Array
    texts: int
    tree: Float64Array
    order: list[int]
    groups: list[int]
    points: Float64Array
    stress: float


def describe_redundancy(divergences: Float64Array, texts: int) -> Redundancy:
    """Tree, groups and map of heads [H, H]."""
    heads = len(divergences)
    points, stress = classical_scaling(np.sqrt(divergences))
    if heads < 2:
        return Redundancy(divergences, texts, np.zeros((0, 4)), [*range(heads)], [1] * heads, points, stress)
    tree = linkage(squareform(divergences, checks=False), method="average")
    order = [int(leaf) for leaf in leaves_list(tree)]
    groups = [int(group) for group in fcluster(tree, ALIKE, criterion="distance")]
    return Redundancy(divergences, texts, tree, order, groups, points, stress)


def mean_divergences(divergences: Float64Array, num_heads: tuple[int, ...]) -> dict[str, float | None]:
    """Mean over pairs of heads of one layer, and over pairs of different layers; None without such a pair."""
    layer = np.repeat(np.arange(len(num_heads)), num_heads)
    same = layer[:, np.newaxis] == layer
    pairs = np.triu(np.ones_like(same), k=1)
    chosen = {"same_layer": same & pairs, "different_layers": ~same & pairs}
    return {name: float(divergences[mask].mean()) if mask.any() else None for name, mask in chosen.items()}
