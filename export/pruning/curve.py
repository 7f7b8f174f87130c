"""Quality against the share of heads removed: least important first, and in random orders to compare with.

With rated pairs quality is Spearman's correlation of the cosines with the ratings, x 100. Without: the cosine of the
embedding with the whole network's, x 100, mean over texts. Either way a point is a hundredth, and the whole network is
where the loss is 0.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from export.heads.corpus import TokenizedPairs
from export.heads.importance import embed
from export.pruning.removal import remove_heads
from export.similarity import pair_cosines, rank_correlations, row_cosines
from export.texts import TokenizedText
from model.analysis.arrays import Float64Array
from model.encoder import Encoder

STEPS = 10  # of the curve, as Michel et al. 2019 prune by tenths
RANDOM_ORDERS = 5
Measure = Literal["spearman", "cosine"]


@dataclass(frozen=True, slots=True)
class PruningQuality:
    """Of one network: the measure that was asked for, and how far its embeddings are from the whole network's.

    Attributes:
        points: Spearman x 100, or mean cosine x 100.
        cosine_mean: to the whole network's embeddings, over texts.
        cosine_worst: the lowest.
    """

    points: float
    cosine_mean: float
    cosine_worst: float


@dataclass(frozen=True, slots=True)
class Judge:
    """Measures networks on the same texts.

    Attributes:
        texts: to embed; with ratings the pairs' left texts, then the right ones.
        ratings: of the pairs, or None.
        whole: embeddings [texts, D] of the whole network.
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


@dataclass(frozen=True, slots=True)
class Point:
    """One share removed: the quality by importance, and the points of each random order."""

    removed: int
    quality: PruningQuality
    random: tuple[float, ...]

    def to_dict(self, heads: int, whole: PruningQuality) -> dict[str, Any]:
        """As JSON types."""
        return {
            "removed": self.removed,
            "share": round(self.removed / heads, 4),
            **{name: round(value, 5) for name, value in asdict(self.quality).items()},
            "lost": round(whole.points - self.quality.points, 5),
            "random_points": [round(points, 5) for points in self.random],
        }


def counts(heads: int) -> list[int]:
    """How many heads each step has removed, from 0 to all but one step's; without repetitions in small networks."""
    return sorted({round(heads * step / STEPS) for step in range(STEPS)})


def draw_curve(
    encoder: Encoder, judge: Judge, order: Sequence[int], randoms: Sequence[Sequence[int]], removals: Sequence[int]
) -> list[Point]:
    """Measures every step in every order."""
    points = []
    with tqdm(total=len(removals) * (1 + len(randoms)), desc="curve", unit="network", leave=False) as bar:
        for removed in removals:
            quality, *others = (_judge(encoder, judge, drawn[:removed]) for drawn in (order, *randoms))
            points.append(Point(removed, quality, tuple(other.points for other in others)))
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
