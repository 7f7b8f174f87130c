"""What every benchmark prints: a table, the machine it ran on, and one line of JSON last; and how it takes turns."""

import json
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from statistics import linear_regression, median
from typing import Any, NamedTuple, TypeVar

import numpy as np
from tqdm import tqdm

from export.pruning.picture import Line, Panel, draw_panels, plain
from model.processor import CPUINFO, processor_name, vector_instructions

PACKAGES = ("numpy", "onnxruntime", "tokenizers", "fastapi", "uvicorn", "uvloop", "torch")
QUIET_CORES = 0.05  # what the system itself may take while a benchmark runs
PERCENTILES = (50, 95, 99)

Key = TypeVar("Key")
Result = TypeVar("Result")


class Spread(NamedTuple):
    """One quantity over several rounds: the median, and the extremes that say how far to trust it."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarises at least one value."""
        return cls(median(values), min(values), max(values))

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
    """Every candidate's results, run once a round: a drift of the machine hits all alike. The first rounds warm up."""
    results: dict[Key, list[Result]] = {key: [] for key in candidates}
    turns = [key for _ in range(warmup + rounds) for key in candidates]
    for key in tqdm(turns, desc="measuring", unit="run", leave=False, disable=None):  # on a terminal only
        results[key].append(candidates[key]())
    return {key: found[warmup:] for key, found in results.items()}


def processor_seconds(run: Callable[[], object]) -> float:
    """Of all threads of this process: on a shared machine they say more than the time that passes."""
    before = time.process_time()
    run()
    return time.process_time() - before


def compare_seconds(ways: Mapping[str, Callable[[], float]], rounds: int) -> list[dict[str, Any]]:
    """A row a way, measured alternately: milliseconds of processor time, and times the first way's, by round."""
    found = in_turns(ways, rounds)
    first = next(iter(found.values()))
    rows = []
    for name, seconds in found.items():
        times = Spread.of([taken / own for taken, own in zip(seconds, first, strict=True)])
        figures = {"cpu_ms": 1000 * median(seconds), "times_first": times.median}
        rows.append({"way": name, **figures, "lowest": times.lowest, "highest": times.highest})
    return rows


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Least-squares rise of `values` per unit of `times`; 0 for fewer than two points."""
    return linear_regression(times, values).slope if len(times) > 1 else 0.0


def _seconds_used() -> tuple[float, float]:
    """Now, and seconds of CPU that others have used since boot: not this process, nor children it has waited for.

    proc(5), /proc/stat: user, nice, system, idle, iowait, irq, softirq and what the hypervisor took (steal).
    """
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    busy = sum(fields) - fields[3] - fields[4]
    return time.monotonic(), busy / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


_BEGINNING = _seconds_used()


@dataclass
class Table:
    """Rows under columns; numbers are rounded for the reader only, `rows` keeps them whole."""

    name: str  # its key in the JSON
    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)  # cells by column

    def add(self, **cells: Any) -> None:
        """Adds a row."""
        self.rows.append(cells)

    def lines(self) -> list[str]:
        """The table as aligned text, numbers to the right; columns in the order in which they first appear."""
        columns = dict.fromkeys(column for row in self.rows for column in row)
        shown = [[_cell(row.get(column)) for column in columns] for row in self.rows]
        lines = [""] * (1 + len(self.rows))
        for place, column in enumerate(columns):
            cells = [column, *(row[place] for row in shown)]
            is_number = all(isinstance(row.get(column), int | float | None) for row in self.rows)
            width = max(map(len, cells))
            padded = (cell.rjust(width) if is_number else cell.ljust(width) for cell in cells)
            lines = [f"{line}{cell}  " for line, cell in zip(lines, padded, strict=True)]
        return [self.title, *(line.rstrip() for line in lines)]


def _cell(value: object) -> str:
    """Three significant digits below 100, whole numbers with separators above."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


Lines = Mapping[str, tuple[Sequence[Mapping[str, Any]], str]]  # by name: rows, and the column that is drawn


def draw(path: Path, title: str, panels: Mapping[str, Lines], column: str, across: str, **scale: bool) -> None:
    """Writes a picture with a panel a title: columns of rows by one column; `across` says what that is.

    What has no figure is left out: a row, a line, a panel. `scale` is that of `Panel`.
    """
    drawn = []
    for heading, lines in panels.items():
        found = {
            name: [(row[column], row[up]) for row in rows if row.get(up) is not None]
            for name, (rows, up) in lines.items()
        }
        made = [Line(name, plain(sorted(points))) for name, points in found.items() if points]
        drawn += [Panel(heading, across, made, **scale)] if made else []
    path.write_text(draw_panels(title, drawn), encoding="utf-8")


def describe_machine() -> dict[str, Any]:
    """CPU model, usable cores, memory, instructions, versions, and how much of it others used since the import."""
    cpuinfo = CPUINFO.read_text()
    kind = (re.search(rf"^{key}\s*: (.*)$", cpuinfo, re.MULTILINE) for key in ("cpu family", "model", "stepping"))
    passed, elsewhere = (now - then for now, then in zip(_seconds_used(), _BEGINNING, strict=True))
    return {
        "cpu": processor_name() or platform.processor() or platform.machine(),
        "cpu_family_model_stepping": "/".join(found[1] if found else "?" for found in kind),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "instructions": list(vector_instructions()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {found.name: found.version for found in distributions() if found.name in PACKAGES},
        "cores_busy_elsewhere": round(max(0.0, elsewhere / passed), 3),
    }


def emit(benchmark: str, tables: list[Table], **results: Any) -> None:
    """Prints the tables, the machine, and all of it as one line of JSON. Servers and workers must have ended by now."""
    machine = describe_machine()
    for table in tables:
        print("\n" + "\n".join(table.lines()))
    print("\n" + "\n".join(f"{key}: {_plain(value)}" for key, value in machine.items()))
    if machine["cores_busy_elsewhere"] > QUIET_CORES:
        print(f"NOT QUIET: others kept {machine['cores_busy_elsewhere']} cores busy meanwhile; record none of this")
    rows = {table.name: table.rows for table in tables}
    print(json.dumps({"benchmark": benchmark, "tables": rows, **results, "machine": machine}), flush=True)


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
