"""Arithmetic of measuring: percentiles, medians over rounds, rounds taken in turns."""

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from tqdm import tqdm

Key = TypeVar("Key")
Result = TypeVar("Result")

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Spread:
    """One quantity over several rounds: the median, and the extremes that say how far to trust it."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarises at least one value."""
        return cls(float(np.median(values)), min(values), max(values))

    def __str__(self) -> str:
        """Half the distance between the extremes, in percent of the median."""
        return f"±{50 * (self.highest - self.lowest) / self.median:.0f}%" if self.median else "-"


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """`p50_ms`, `p95_ms` and `p99_ms` by the nearest-rank method: each is a value that occurred."""
    if not seconds:
        return {}
    found = np.percentile(seconds, PERCENTILES, method="inverted_cdf")
    return {f"p{rank}_ms": 1000 * float(value) for rank, value in zip(PERCENTILES, found, strict=True)}


def in_turns(candidates: Mapping[Key, Callable[[], Result]], rounds: int, warmup: int = 1) -> dict[Key, list[Result]]:
    """Runs every candidate once a round, so that a drift of the machine hits all of them alike.

    Args:
        candidates: what to run, by name.
        rounds: results kept of each.
        warmup: rounds before those, whose results are dropped.
    """
    results: dict[Key, list[Result]] = {key: [] for key in candidates}
    turns = [(turn, key) for turn in range(warmup + rounds) for key in candidates]
    for turn, key in tqdm(turns, desc="measuring", unit="run", leave=False, disable=None):  # on a terminal only
        result = candidates[key]()
        if turn >= warmup:
            results[key].append(result)
    return results


def processor_seconds(run: Callable[[], object]) -> float:
    """Of all threads of this process: on a shared machine they say more than the time that passes."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Least-squares rise of `values` per unit of `times`; 0 for fewer than two points."""
    if len(times) < 2:
        return 0.0
    centred = np.asarray(times) - np.mean(times)
    return float(centred @ np.asarray(values) / (centred @ centred))
