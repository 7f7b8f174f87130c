"""What a sweep found: JSON, a table in Markdown, and a picture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from export.heads.install import write_whole
from train.experiments.comparison import compare, format_interval, variance_test
from train.experiments.picture import Line, draw_lines
from train.experiments.sweep import BASELINE, Sweep
from train.experiments.trials import Found

SERIES = {"equal": "equal parameters", "fixed": "equal size of a head"}
HOUR = 3600


def write_sweep(folder: Path, sweep: Sweep, found: Sequence[Found]) -> Mapping[str, Any]:
    """Writes sweep.json, sweep.md and sweep.svg, and returns the first."""
    record = summarise(sweep, found)
    write_whole(folder / "sweep.json", json.dumps(record, indent=1).encode() + b"\n")
    write_whole(folder / "sweep.md", table(record).encode())
    lines = [Line(SERIES[kind], _points(record, kind)) for kind in SERIES]
    picture = draw_lines("Cosine to the vectors to learn", "heads a layer", lines, logarithmic=True)
    write_whole(folder / "sweep.svg", picture.encode())
    return record


def summarise(sweep: Sweep, found: Sequence[Found]) -> dict[str, Any]:
    """Rows with means and intervals, and whether heads matter more than seeds do."""
    by_row: dict[str, list[Found]] = {}
    for trial in found:
        by_row.setdefault(trial["described"]["row"], []).append(trial)
    values = {row: [trial["score"] for trial in trials] for row, trials in by_row.items()}
    rows = [
        {"row": row, **_shape(by_row[row][0]), **figures, "seconds_per_step": _mean(by_row[row], "seconds_per_step")}
        for row, figures in compare(values, BASELINE).items()
    ]
    tests = {kind: variance_test({row: values[row] for row in _rows_of(kind, values)}) for kind in SERIES}
    first = found[0]["described"]
    return {
        "schema_version": 1,
        "score": "cosine_mean",
        "source": sweep.teacher.source.id,
        "settings": {key: first[key] for key in first if key not in ("row", "fields")},
        "num_layers": sweep.settings.num_layers,
        "steps": sweep.settings.steps,
        "seeds": sweep.settings.seeds,
        "rows": rows,
        "variance_tests": tests,
        "cpu_seconds": round(sum(trial["cpu_seconds"] for trial in found)),
    }


def table(record: Mapping[str, Any]) -> str:
    """The rows as Markdown."""
    lines = [
        "| row | heads | d_k | parameters | cosine, 95 % of seeds | against 8 heads | beyond seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        compared, is_apart = "", ""
        if "difference" in row:
            compared, is_apart = (
                format_interval(row["difference"], sign=True),
                "yes" if row["larger_than_seeds"] else "no",
            )
        kind = row["row"].partition("-")[0]
        lines.append(
            f"| {SERIES.get(kind, row['row'].replace('-', ' '))} | {row['heads']} | {row['d_k']} | "
            f"{row['parameters'] / 1e6:.2f} M | {format_interval(row)} | {compared} | {is_apart} |"
        )
    for kind, test in record["variance_tests"].items():
        if test:
            lines += [
                "",
                f"{SERIES[kind].capitalize()}: F = {test['f']:.2f}, p = {test['p']:.2g} (analysis of variance).",
            ]
    return "\n".join(lines) + "\n"


def hours(seconds_per_step: float, steps: int, runs: int) -> float:
    """How long so many runs take."""
    return seconds_per_step * steps * runs / HOUR


def _shape(trial: Found) -> dict[str, Any]:
    fields = trial["described"]["fields"]
    return {"heads": fields["num_heads"][0], "d_k": fields["d_k"], "parameters": trial["parameters"]}


def _mean(trials: Sequence[Found], name: str) -> float:
    return float(round(sum(trial[name] for trial in trials) / len(trials), 4))


def _rows_of(kind: str, names: Mapping[str, Any]) -> list[str]:
    """The rows of a series; the compared number of heads belongs to both."""
    return [name for name in names if name.startswith(f"{kind}-") or name == BASELINE]


def _points(record: Mapping[str, Any], kind: str) -> list[tuple[float, Mapping[str, float]]]:
    rows = {row["row"]: row for row in record["rows"]}
    return sorted(((rows[name]["heads"], rows[name]) for name in _rows_of(kind, rows)), key=lambda point: point[0])
