"""Which method finds the input tokens that carry a similarity or a logit? Each against leaving tokens out.

Pairs: a CSV without a header, sentence, sentence, rating (the STS benchmark's format). For both texts of each pair a
method scores the tokens that are not special; a cross-encoder reads both texts at once. `agreement`: Spearman with what
is lost when the token is left out. `drop`: what is lost without the best-scored token, or without the best third. `left
with half`: what is left with the best-scored half alone. Intervals are 95 %, by bootstrap over pairs.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tqdm import tqdm

from benchmarks.lib.attribution import METHODS, POOLING, text_places, vector
from benchmarks.lib.command import CannotMeasure, parser_of, positive, program, whole
from benchmarks.lib.report import Table, emit
from benchmarks.peers.xplainsim import token_scores
from export.checkpoint import Checkpoint, read_checkpoint
from export.heads.pairs import read_pairs
from export.pruning.driver import PruningRequest, prune
from export.sources import find_folder
from model.encoder import Encoder

FIGURES = ("agreement", "drop of 1", "drop of a third", "left with half")
LEAST, MOST = 5, 30  # tokens of a text, special ones included; of a cross-encoder's pair twice as many
RESAMPLES = 2000

Scores = NDArray[np.float64]
Given = Mapping[str, Sequence[Sequence[Scores]]]


@program
def main() -> None:
    """Prints a row a method, then JSON."""
    arguments = _parse()
    torch.manual_seed(0)
    checkpoint = read_checkpoint(find_folder(arguments.source))
    if arguments.prune_heads is not None:
        checkpoint = prune(checkpoint, PruningRequest(share=arguments.prune_heads, with_curve=False)).checkpoint
    encoder = checkpoint.encoder.use("eager")
    if encoder.config.pooling == "max" or (encoder.config.output_size != 1 and encoder.config.task != "embedding"):
        raise CannotMeasure("an embedder or a cross-encoder of one label is measured, without maximum pooling")
    pairs = _choose(checkpoint, arguments.pairs, arguments.count)
    given = _of_xplainsim(checkpoint, arguments, [pair.texts for pair in pairs])
    measured = measure(encoder, [pair.rows for pair in pairs], given)
    table = Table("faithfulness", "faithful to leaving tokens out", ("method", *FIGURES))
    for name, figures in measured.items():
        cells = (_with_interval(figures[:, column]) for column in range(len(FIGURES)))
        table.add(**dict(zip(table.columns, (name, *cells), strict=True)))
    emit("attention faithfulness", [table], pairs=arguments.count, model=checkpoint.name)


def measure(encoder: Encoder, pairs: Sequence[Sequence[list[int]]], given: Given | None = None) -> dict[str, Scores]:
    """The figures of every method, and of leaving out itself; [pairs, figures] each.

    Args:
        encoder: an embedder or a cross-encoder.
        pairs: ids of both texts, whose figures are averaged; of a cross-encoder those of both together.
        given: by method, for each pair and text, scores of its tokens that were computed elsewhere.
    """
    methods = {name: method for name, method in METHODS.items() if name != POOLING or _is_embedder(encoder)}
    given = given or {}
    found: dict[str, list[Scores]] = {name: [] for name in ("leaving out itself", *methods, *given)}
    for place, pair in enumerate(tqdm(pairs, unit="pair", leave=False, disable=None)):
        sides: dict[str, list[Scores]] = {name: [] for name in found}
        for side, (ids, target) in enumerate(_targets(encoder, pair)):
            drops = left_out_drops(encoder, ids, target)
            sides["leaving out itself"].append(_figures(encoder, ids, target, drops, drops))
            scores = {name: method(encoder, ids, target) for name, method in methods.items()}
            scores |= {name: by_pair[place][side] for name, by_pair in given.items()}
            for name, of_tokens in scores.items():
                sides[name].append(_figures(encoder, ids, target, of_tokens[text_places(ids)], drops))
        for name, rows in sides.items():
            found[name].append(np.mean(rows, axis=0))
    return {name: np.stack(rows) for name, rows in found.items()}


def left_out_drops(encoder: Encoder, ids: list[int], target: torch.Tensor) -> Scores:
    """Similarity, or logit, lost without each token that is not special."""
    whole_text, places = similarity(encoder, ids, target), range(len(text_places(ids)))
    return np.array([whole_text - similarity(encoder, without(ids, [place]), target) for place in places])


def without(ids: list[int], places: Sequence[int]) -> list[int]:
    """A text without some of its tokens, counted among those that are not special."""
    own = text_places(ids)
    dropped = {own[place] for place in places}
    return [token for place, token in enumerate(ids) if place not in dropped]


def similarity(encoder: Encoder, ids: list[int], target: torch.Tensor) -> float:
    """The cosine of a text and a vector of length 1, or a logit."""
    return float(vector(encoder, ids) @ target)


def _targets(encoder: Encoder, pair: Sequence[list[int]]) -> list[tuple[list[int], torch.Tensor]]:
    """Each text with the other one's vector; a cross-encoder's pair with what its logit is multiplied by."""
    if not _is_embedder(encoder):
        return [(ids, torch.ones(1)) for ids in pair]
    return [(ids, vector(encoder, other)) for ids, other in zip(pair, reversed(pair), strict=True)]


def _is_embedder(encoder: Encoder) -> bool:
    return encoder.config.task == "embedding"


def _figures(encoder: Encoder, ids: list[int], target: torch.Tensor, scores: Scores, drops: Scores) -> Scores:
    order = np.argsort(-scores, kind="stable").tolist()
    whole_text, third = similarity(encoder, ids, target), max(1, round(len(order) / 3))
    agreement = float(spearmanr(scores, drops)[0]) if np.ptp(scores) and np.ptp(drops) else 0.0
    lost = whole_text - similarity(encoder, without(ids, order[:third]), target)
    kept = similarity(encoder, without(ids, order[(len(order) + 1) // 2 :]), target)
    return np.array([agreement, drops[order[0]], lost, kept])


def _with_interval(values: Scores) -> str:
    generator = np.random.default_rng(0)
    means = generator.choice(values, (RESAMPLES, len(values))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{values.mean():.3f} ({low:.3f} to {high:.3f})"


class _Pair(NamedTuple):
    texts: tuple[str, str]
    rows: list[list[int]]  # ids of both texts; of a cross-encoder those of both together


def _choose(checkpoint: Checkpoint, path: Path, count: int) -> list[_Pair]:
    """So many pairs with texts of the lengths that are measured, spread over the file."""
    pairs, encode = read_pairs(path), checkpoint.tokenizer.encode
    is_apart = _is_embedder(checkpoint.encoder)
    most = MOST if is_apart else 2 * MOST
    fitting = []
    for left, right in zip(pairs.left, pairs.right, strict=True):
        rows = [encode(left).ids, encode(right).ids] if is_apart else [encode(left, right).ids]
        if all(LEAST <= len(ids) <= most for ids in rows):
            fitting.append(_Pair((left, right), rows))
    if len(fitting) < count:
        raise CannotMeasure(f"{path} has {len(fitting)} pairs of {LEAST} to {most} tokens, {count} are wanted")
    return [fitting[place] for place in np.linspace(0, len(fitting) - 1, count).astype(int)]


def _of_xplainsim(checkpoint: Checkpoint, arguments: argparse.Namespace, texts: list[tuple[str, str]]) -> Given:
    """Its scores, where they are asked for."""
    if arguments.xplainsim is None:
        return {}
    if not _is_embedder(checkpoint.encoder) or arguments.prune_heads is not None:
        raise CannotMeasure("--xplainsim reads a checkpoint's folder: an embedder, without --prune-heads")
    return {"xplainsim": token_scores(arguments.xplainsim, find_folder(arguments.source).path, texts)}


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="a minute a dozen pairs")
    parser.add_argument("source", nargs="?", help="checkpoint folder or hub id (default: the default model)")
    parser.add_argument("--pairs", type=Path, required=True, metavar="CSV", help="rated pairs of sentences")
    parser.add_argument("--prune-heads", type=positive, metavar="SHARE", help="remove this share of the heads before")
    parser.add_argument(
        "--xplainsim", type=Path, metavar="DIR", help="beside xplainsim too, half a minute a pair; DIR keeps it"
    )
    parser.add_argument("--count", type=whole, default=80, help="pairs to measure (default: %(default)s)")
    return parser.parse_args()
