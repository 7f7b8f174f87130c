"""Rows of an experiment, each run with the same seeds: means, intervals, and differences from one of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from export.heads.intervals import RunningMean
from model.analysis.arrays import Float64Array

Values = Mapping[str, Sequence[float]]
"""A score for each seed, by row."""


def compare(values: Values, baseline: str | None = None) -> dict[str, dict[str, Any]]:
    """For each row its mean and 95 % interval over seeds (Student's), and its mean difference from the baseline.

    Differences are taken seed by seed: rows of one seed share the order of the data.

    Args:
        values: by row, the same seeds in the same order.
        baseline: the row that the others are compared with; None for no differences.
    """
    names = list(values)
    table = np.array([values[name] for name in names])  # [rows, seeds]
    found = {name: {"values": list(values[name]), **one} for name, one in zip(names, _means(table), strict=True)}
    if baseline is not None:
        differences = _means(table - table[names.index(baseline)])
        for name, difference in zip(names, differences, strict=True):
            if name != baseline:
                is_apart = difference["low"] > 0 or difference["high"] < 0
                found[name] |= {"difference": difference, "larger_than_seeds": is_apart}
    return found


def variance_test(values: Values) -> dict[str, float] | None:
    """Whether rows differ by more than seeds do: one-way analysis of variance; None where it is not defined."""
    if len(values) < 2 or min(map(len, values.values())) < 2:
        return None
    statistic, probability = stats.f_oneway(*values.values())
    if not np.isfinite(statistic):
        return None
    return {"f": float(statistic), "p": float(probability)}


def format_interval(figures: Mapping[str, float], *, sign: bool = False) -> str:
    """A mean with its interval, as tables show it."""
    shown = "{:+.4f}" if sign else "{:.4f}"
    return f"{shown.format(figures['mean'])} ({shown.format(figures['low'])} to {shown.format(figures['high'])})"


def _means(table: Float64Array) -> list[dict[str, float]]:
    """Mean and interval over the seeds of each row of [rows, seeds]."""
    running = RunningMean()
    for column in table.T:
        running.add(column)
    estimate = running.estimate()
    assert estimate is not None  # noqa: S101 - there is at least one seed
    bounds = (estimate.mean, estimate.low, estimate.high)
    return [dict(zip(("mean", "low", "high"), map(float, row), strict=True)) for row in zip(*bounds, strict=True)]
