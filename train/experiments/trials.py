"""Experiments: each trial is run once and keeps its findings in a file; rows are compared over seeds."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from export.exporter import require_writable
from export.heads import intervals
from export.sources import read_json
from model.analysis.arrays import Float64Array
from model.artifact import write_whole
from train.errors import RunError
from train.settings import CHECKPOINT, RunSettings

LEVEL = 0.05
TRIALS, UNDER_WAY = "trials", "under-way"

Found = dict[str, Any]

Values = Mapping[str, Sequence[float]]
"""A score for each seed, by row."""


class Trial(NamedTuple):
    """One of an experiment; `run` trains in a folder, from its checkpoint if the second argument is True."""

    name: str  # a file's
    described: Mapping[str, Any]  # everything that decides the result, as JSON types
    run: Callable[[Path, bool], Mapping[str, Any]]  # returns figures


def of_steps(run: RunSettings, steps: int, examples: int, **changes: Any) -> RunSettings:
    """A run of so many steps on some examples."""
    return replace(run, epochs=steps / max(1, examples // run.batch_size), **changes)


def run_trials(folder: Path, trials: Sequence[Trial]) -> list[Found]:
    """What each trial found; those that were run before are not run again, and refused with other settings or data."""
    require_writable(folder)  # a row of `patterns` takes a minute
    return [_run_trial(folder, trial) for trial in trials]


def _run_trial(folder: Path, trial: Trial) -> Found:
    path = folder / TRIALS / f"{trial.name}.json"
    wanted = json.loads(json.dumps(trial.described))
    if path.is_file():
        kept: Found = read_json(path)
        if kept["described"] != wanted:
            raise RunError(f"{path} is of an experiment with other settings or data: name another --output")
        return kept
    place = folder / UNDER_WAY / trial.name
    is_begun = (place / CHECKPOINT).is_file()
    if place.exists() and not is_begun:
        shutil.rmtree(place)
    found = {"name": trial.name, "described": wanted, **trial.run(place, is_begun)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(found, indent=1).encode() + b"\n")
    shutil.rmtree(place, ignore_errors=True)
    return found


def count_left(folder: Path, trials: Sequence[Trial]) -> int:
    """How many trials are still to be made."""
    return sum(not (folder / TRIALS / f"{trial.name}.json").is_file() for trial in trials)


def write_found(
    folder: Path, name: str, record: Mapping[str, Any], table: Sequence[str], pictures: Mapping[str, str]
) -> None:
    """Writes what an experiment found: NAME.json, NAME.md and its pictures."""
    write_whole(folder / f"{name}.json", json.dumps(record, indent=1).encode() + b"\n")
    write_whole(folder / f"{name}.md", ("\n".join(table) + "\n").encode())
    for picture, drawn in pictures.items():
        write_whole(folder / f"{picture}.svg", drawn.encode())


def compare(values: Values, baseline: str) -> dict[str, dict[str, Any]]:
    """For each row its mean and 95 % interval over seeds (Student's), and its mean difference from the baseline's.

    Differences are taken seed by seed: rows of one seed share the order of the data. All rows have the same seeds.
    """
    names = list(values)
    table = np.array([values[name] for name in names])  # [rows, seeds]
    found = {name: {"values": list(values[name]), **one} for name, one in zip(names, _means(table), strict=True)}
    differences = table - table[names.index(baseline)]
    for name, row, difference in zip(names, differences, _means(differences), strict=True):
        if name != baseline:
            probability = 1.0 if not row.any() else 0.0 if np.ptp(row) == 0 else stats.ttest_1samp(row, 0).pvalue
            found[name] |= {"difference": difference, "p": float(probability)}
    judge([row for row in found.values() if "p" in row])
    return found


def judge(rows: Sequence[dict[str, Any]]) -> None:
    """Says of each row whether its difference is larger than seeds explain, at 5 % over all rows (Holm 1979)."""
    for row, adjusted in zip(rows, intervals.holm(np.array([row["p"] for row in rows])), strict=True):
        row["larger_than_seeds"] = bool(adjusted < LEVEL)


def variance_test(values: Values) -> dict[str, float] | None:
    """Whether rows differ by more than seeds do: one-way analysis of variance; None if it is not defined."""
    statistic, probability = stats.f_oneway(*values.values()) if len(values) > 1 else (np.nan, np.nan)
    return {"f": float(statistic), "p": float(probability)} if np.isfinite(statistic) else None


def format_interval(figures: Mapping[str, float], *, sign: bool = False) -> str:
    """A mean with its interval, as tables show it."""
    shown = "{:+.4f}" if sign else "{:.4f}"
    return f"{shown.format(figures['mean'])} ({shown.format(figures['low'])} to {shown.format(figures['high'])})"


def estimate(values: Sequence[float]) -> dict[str, float]:
    """Mean and 95 % interval over seeds of one row."""
    return _means(np.array([values]))[0]


def difference_cells(figures: Mapping[str, Any]) -> str:
    """Two cells of a table: the difference from the baseline, and whether seeds explain it; empty for the baseline."""
    if "difference" not in figures:
        return "  |  "
    return f"{format_interval(figures['difference'], sign=True)} | {'yes' if figures['larger_than_seeds'] else 'no'}"


def _means(table: Float64Array) -> list[dict[str, float]]:
    found = intervals.estimate(table.T)
    assert found is not None  # noqa: S101 - there is at least one seed
    bounds = (found.mean, found.low, found.high)
    return [dict(zip(("mean", "low", "high"), map(float, row), strict=True)) for row in zip(*bounds, strict=True)]
