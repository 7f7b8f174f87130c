"""What every benchmark prints: a table, the machine it ran on, and one line of JSON last; figures as SVG.

It measures nothing itself.
"""

import json
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from statistics import linear_regression
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from benchmarks.lib.command import CannotMeasure
from model.processor import CPUINFO, processor_name, vector_instructions

PACKAGES = ("numpy", "onnxruntime", "tokenizers", "fastapi", "uvicorn", "uvloop", "torch")
QUIET_CORES = 0.05  # what the system itself may take while a benchmark runs


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
    before = time.process_time()
    run()
    return time.process_time() - before


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Least-squares rise of `values` per unit of `times`; 0 for fewer than two points."""
    return linear_regression(times, values).slope if len(times) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class CoresUsed:
    """Seconds of CPU used since boot, by everything and by this process with the children it has waited for."""

    at: float
    by_all: float
    by_us: float

    @classmethod
    def now(cls) -> "CoresUsed":
        """Reads proc(5) /proc/stat: user, nice, system, irq, softirq and what the hypervisor took (steal)."""
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        busy = sum(fields) - fields[3] - fields[4]  # all but idle and iowait
        return cls(time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4]))

    def elsewhere(self) -> float:
        """Cores that others kept busy since then: what a figure's worth depends on."""
        now = CoresUsed.now()
        return max(0.0, (now.by_all - self.by_all - now.by_us + self.by_us) / (now.at - self.at))


_BEGINNING = CoresUsed.now()


@dataclass
class Table:
    """Rows under columns; numbers are rounded for the reader only, `rows` keeps them whole.

    Attributes:
        name: its key in the JSON.
        title: the question the table answers.
        columns: their names, in order; by default the names in the rows, in the order in which they first appear.
        rows: one mapping a row, by column.
    """

    name: str
    title: str
    columns: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **cells: Any) -> None:
        """Adds a row."""
        self.rows.append(cells)

    def lines(self) -> list[str]:
        """The table as aligned text, numbers to the right."""
        columns = self.columns or tuple(dict.fromkeys(column for row in self.rows for column in row))
        shown = [[format_cell(row.get(column)) for column in columns] for row in self.rows]
        widths = [max(map(len, cells)) for cells in zip(columns, *shown, strict=True)]
        numeric = [all(isinstance(row.get(column), int | float | None) for row in self.rows) for column in columns]
        lines = [self.title]
        for cells in ([*columns], *shown):
            padded = (
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(cells, widths, numeric, strict=True)
            )
            lines.append("  ".join(padded).rstrip())
        return lines


def format_cell(value: object) -> str:
    """Three significant digits below 100, whole numbers with separators above."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def labels(folders: Sequence[Path]) -> dict[Path, str]:
    """What rows call each folder: its name, or the whole path where another one has the same name."""
    names = Counter(folder.name for folder in {folder.resolve() for folder in folders})
    return {folder: name if names[name := folder.resolve().name] == 1 else str(folder) for folder in folders}


def describe_machine() -> dict[str, Any]:
    """CPU model, usable cores, memory, instructions, versions, and how much of it others used since the import."""
    cpuinfo = CPUINFO.read_text()
    kind = (re.search(rf"^{key}\s*: (.*)$", cpuinfo, re.MULTILINE) for key in ("cpu family", "model", "stepping"))
    return {
        "cpu": processor_name() or platform.processor() or platform.machine(),
        "cpu_family_model_stepping": "/".join(found[1] if found else "?" for found in kind),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "instructions": list(vector_instructions()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {found.name: found.version for found in distributions() if found.name in PACKAGES},
        "cores_busy_elsewhere": round(_BEGINNING.elsewhere(), 3),
    }


def emit(benchmark: str, tables: list[Table], **results: Any) -> None:
    """Prints the tables, the machine, and all of it as one line of JSON. Servers and workers must have ended by now.

    Args:
        benchmark: name of the script.
        tables: printed in order.
        **results: whatever else belongs into the JSON: settings, single figures.
    """
    machine = describe_machine()
    for table in tables:
        print("\n" + "\n".join(table.lines()))
    print("\n" + "\n".join(f"{key}: {_plain(value)}" for key, value in machine.items()))
    if machine["cores_busy_elsewhere"] > QUIET_CORES:
        print(f"NOT QUIET: others kept {machine['cores_busy_elsewhere']} cores busy meanwhile; record none of this")
    rows = {table.name: [{key: _short(cell) for key, cell in row.items()} for row in table.rows] for table in tables}
    print(json.dumps({"benchmark": benchmark, "tables": rows, **results, "machine": machine}), flush=True)


def _short(value: object) -> object:
    """Numbers to six digits: no measurement has more."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


OURS, THEIRS = "#2f7fb3", "#97a2ac"
COLOURS = (OURS, "#c4673a", THEIRS)

Curves = Mapping[str, Sequence[float]]
Bars = Mapping[str, float]


def draw_curves(path: Path, x: Sequence[float], panels: Mapping[str, Curves]) -> None:
    """Writes panels of curves below each other, each with a linear scale from 0; `x`, above 0, is logarithmic."""
    figure, axes = _figure(len(panels), [1.0] * len(panels))
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for colour, (label, values) in zip(COLOURS, curves.items(), strict=False):
            axis.plot(x, values, color=colour, label=label)
        axis.set(title=title, xscale="log", ylim=(0, None))
        axis.set_xticks(x, [f"{value:,g}" for value in x], minor=False)
        axis.minorticks_off()
        axis.legend(frameon=False)
    _write(figure, path)


def draw_bars(path: Path, panels: Mapping[str, Bars], ours: Sequence[str]) -> None:
    """Writes panels of bars below each other, the longest first; panels without bars are left out."""
    filled = {title: bars for title, bars in panels.items() if bars}
    figure, axes = _figure(len(filled), [float(len(bars)) for bars in filled.values()])
    for axis, (title, bars) in zip(axes, filled.items(), strict=True):
        labels = sorted(bars, key=lambda label: bars[label])  # the first bar stands at the bottom
        colours = [OURS if label in ours else THEIRS for label in labels]
        drawn = axis.barh(labels, [bars[label] for label in labels], color=colours)
        axis.bar_label(drawn, fmt="{:,.0f}", padding=4)
        axis.set(title=title, xticks=[])
    _write(figure, path)


def _figure(count: int, heights: list[float]) -> tuple[Any, Any]:
    try:
        from matplotlib import pyplot  # noqa: PLC0415 - of the extra `test`
    except ImportError as error:
        raise CannotMeasure("matplotlib draws pictures: pip install -e '.[test]'") from error
    pyplot.rcParams.update({"svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False})
    size = (8.0, sum(0.8 + 0.25 * height if max(heights) > 1 else 2.6 for height in heights))
    figure, axes = pyplot.subplots(count, 1, figsize=size, height_ratios=heights, squeeze=False, layout="constrained")
    return figure, axes[:, 0]


def _write(figure: Any, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None})
