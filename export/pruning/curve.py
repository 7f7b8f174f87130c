"""Quality against the share of heads removed: least important first, and in random orders to compare with.

With rated pairs quality is Spearman's correlation of the cosines with the ratings, x 100. Without: the cosine of the
embedding with the whole network's, x 100, mean over texts.

Beside it, how fast the graph is, and how fast it could be at most. A pruned graph is timed against the whole one, in
turns, so that a drift of the machine changes both alike: CPU time on one thread, as a worker of the service runs it.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from export.checkpoint import Checkpoint
from export.exporter import write_graph
from export.graph import trace
from export.heads.corpus import TokenizedPairs
from export.heads.importance import embed
from export.precision import to_precision
from export.pruning.removal import remove_heads
from export.runtime import Session
from export.similarity import pair_cosines, rank_correlations, row_cosines
from export.texts import Inputs, TokenizedText, batch_inputs, collate
from model.analysis.arrays import Float64Array
from model.artifact import GRAPH
from model.config import EncoderConfig
from model.config_parts import Precision
from model.encoder import Encoder

STEPS = 10  # of the curve, as Michel et al. 2019 prune by tenths
RANDOM_ORDERS = 5
Measure = Literal["spearman", "cosine"]


@dataclass(frozen=True, slots=True)
class PruningQuality:
    """Of one network: Spearman x 100, or mean cosine x 100, and its embeddings' cosines to the whole network's."""

    points: float
    cosine_mean: float
    cosine_worst: float


@dataclass(frozen=True, slots=True)
class Judge:
    """Measures networks on the same texts, with ratings the texts of pairs: left ones, then right ones.

    `whole` are the embeddings [texts, D] of the whole network.
    """

    texts: Sequence[TokenizedText]
    ratings: Float64Array | None
    whole: Float64Array = field(repr=False)

    @property
    def measure(self) -> Measure:
        """What `PruningQuality.points` are."""
        return "cosine" if self.ratings is None else "spearman"

    def judge(self, encoder: Encoder) -> PruningQuality:
        """Embeds every text and compares."""
        return self._compare(embed(encoder, self.texts))

    def judge_whole(self) -> PruningQuality:
        """The same of the whole network, which is embedded already."""
        return self._compare(self.whole)

    def _compare(self, embeddings: Float64Array) -> PruningQuality:
        cosines = row_cosines(embeddings, self.whole)
        points = 100 * float(cosines.mean())
        if self.ratings is not None:
            points = 100 * float(np.nan_to_num(rank_correlations(pair_cosines(embeddings), self.ratings)))
        return PruningQuality(points, float(cosines.mean()), float(cosines.min()))


def make_judge(encoder: Encoder, texts: Sequence[TokenizedText], pairs: TokenizedPairs | None) -> Judge:
    """A judge by rated pairs, or, without any, by plain texts."""
    judged = pairs.texts if pairs else texts
    return Judge(judged, pairs.ratings if pairs else None, embed(encoder, judged))


def counts(heads: int) -> list[int]:
    """How many heads each step has removed, from 0 to all but one step's; without repetitions in small networks."""
    return sorted({round(heads * step / STEPS) for step in range(STEPS)})


def draw_curve(
    encoder: Encoder, judge: Judge, order: Sequence[int], randoms: Sequence[Sequence[int]], removals: Sequence[int]
) -> list[dict[str, Any]]:
    """Every step's quality by importance, and the points of each random order, as JSON types."""
    points, whole = [], judge.judge_whole()
    with tqdm(total=len(removals) * (1 + len(randoms)), desc="curve", unit="network", leave=False) as bar:
        for removed in removals:
            quality, *others = (_judge(encoder, judge, drawn[:removed]) for drawn in (order, *randoms))
            points.append(
                {
                    "removed": removed,
                    "share": round(removed / len(order), 4),
                    **{name: round(value, 5) for name, value in asdict(quality).items()},
                    "lost": round(whole.points - quality.points, 5),
                    "random_points": [round(other.points, 5) for other in others],
                }
            )
            bar.update(1 + len(randoms))
    return points


def most_within(encoder: Encoder, judge: Judge, order: Sequence[int], allowed: float) -> int:
    """The most heads that can be removed, in order, with every step on the way losing at most `allowed` points.

    Steps of a tenth first, single heads within the last one; so a loss between two tenths that comes back is not seen.
    """
    least = judge.judge_whole().points - allowed

    def holds(removed: int) -> bool:
        return _judge(encoder, judge, order[:removed]).points >= least

    kept = 0
    with tqdm(desc="pruning to quality", unit="network", leave=False) as bar:
        for step in [*counts(len(order))[1:], len(order)]:
            bar.update()
            if not holds(step):
                break
            kept = step
        while kept < len(order) and holds(kept + 1):
            bar.update()
            kept += 1
    return kept


def _judge(encoder: Encoder, judge: Judge, removed: Sequence[int]) -> PruningQuality:
    return judge.judge(remove_heads(encoder, removed)) if removed else judge.judge_whole()


BATCH_SIZES = (1, 8, 32)
SECONDS = 0.6  # a graph and batch size: enough for a median of the slowest
FEWEST_RUNS, MOST_RUNS = 5, 60
WARM_UP = 2
Timings = dict[int, dict[int, dict[str, float]]]  # by heads removed, and batch size


def time_steps(
    checkpoint: Checkpoint,
    order: Sequence[int],
    removals: Sequence[int],
    texts: Sequence[TokenizedText],
    precision: Precision,
) -> Timings:
    """Timings of every step by heads removed and batch size, each step's graph against the whole one."""
    timings: Timings = {}
    with tempfile.TemporaryDirectory() as directory:
        whole = _write(checkpoint, Path(directory) / "whole", precision)
        inputs = _inputs_of(texts, checkpoint.encoder.config)
        for removed in tqdm(removals, desc="timing", unit="graph", leave=False):
            pruned = replace(checkpoint, encoder=remove_heads(checkpoint.encoder, order[:removed]))
            other = _write(pruned, Path(directory) / "pruned", precision)
            own = _inputs_of(texts, pruned.encoder.config)
            timings[removed] = compare(whole, other, {size: (inputs[size], own[size]) for size in inputs})
    return timings


def _write(checkpoint: Checkpoint, directory: Path, precision: Precision) -> Path:
    directory.mkdir(exist_ok=True)
    write_graph(trace(to_precision(checkpoint, precision).traced), directory)
    return directory / GRAPH


def compare(whole: Path, pruned: Path, inputs: Mapping[int, tuple[Inputs, Inputs]]) -> dict[int, dict[str, float]]:
    """Times the graph with all heads and another, on inputs of either by batch size: medians over turns.

    CPU seconds of a run of the pruned and of the whole graph, and how many times faster the first is.
    """
    first, second = Session(whole, threads=1), Session(pruned, threads=1)
    timings = {}
    for size, (of_whole, of_pruned) in inputs.items():
        for _ in range(WARM_UP):
            first.run(of_whole)
            second.run(of_pruned)
        turns: list[tuple[float, float]] = []
        end = time.process_time() + 2 * SECONDS
        while len(turns) < FEWEST_RUNS or (time.process_time() < end and len(turns) < MOST_RUNS):
            turns.append((first.cpu_seconds(of_whole), second.cpu_seconds(of_pruned)))
        times = np.array(turns)
        whole_seconds, seconds = np.median(times, axis=0).tolist()
        speed = float(np.median(times[:, 0] / times[:, 1]))
        timings[size] = {"seconds": seconds, "whole_seconds": whole_seconds, "speed": speed}
    return timings


def _inputs_of(texts: Sequence[TokenizedText], config: EncoderConfig) -> dict[int, Inputs]:
    """One batch of each size, of texts as they come: the first ones, padded."""
    return {size: batch_inputs(config, collate(texts[:size])) for size in BATCH_SIZES if size <= len(texts)}


def with_bounds(timings: Timings, heads: int) -> dict[str, Any]:
    """Timings as JSON, next to the bound 1 / (1 - s p) with s the share of time that goes with all heads (Amdahl)."""
    shares = {size: max(0.0, 1 - 1 / timing["speed"]) for size, timing in timings[heads].items()}
    latency = [
        {
            "removed": removed,
            "share": round(removed / heads, 4),
            "batches": {
                str(size): {
                    "seconds": round(timing["seconds"], 7),
                    "whole_seconds": round(timing["whole_seconds"], 7),
                    "speed": round(timing["speed"], 4),
                    "bound": round(1 / (1 - shares[size] * removed / heads), 4),
                }
                for size, timing in by_size.items()
            },
        }
        for removed, by_size in timings.items()
    ]
    return {"attention_share": {str(size): round(share, 4) for size, share in shares.items()}, "latency": latency}
