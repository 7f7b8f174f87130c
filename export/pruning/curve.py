"""Quality against the share of heads removed: least important first, and in random orders to compare with."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tqdm import tqdm

from export.pruning.quality import Judge, PruningQuality
from export.pruning.removal import remove_heads
from model.encoder import Encoder

STEPS = 10  # of the curve, as Michel et al. 2019 prune by tenths
RANDOM_ORDERS = 5


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
            quality = _judge(encoder, judge, order[:removed], bar.update)
            random = tuple(_judge(encoder, judge, drawn[:removed], bar.update).points for drawn in randoms)
            points.append(Point(removed, quality, random))
    return points


def most_within(encoder: Encoder, judge: Judge, order: Sequence[int], allowed: float) -> int:
    """The most heads that can be removed, in order, with every step on the way losing at most so many points.

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


def _judge(
    encoder: Encoder, judge: Judge, removed: Sequence[int], done: Callable[[int], object] = lambda _: None
) -> PruningQuality:
    quality = judge.judge(remove_heads(encoder, removed)) if removed else judge.judge_whole()
    done(1)
    return quality
