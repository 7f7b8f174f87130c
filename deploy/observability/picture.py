"""The dashboard's panels drawn from a Prometheus that has their data, as one PNG: what Grafana shows, without Grafana.

It draws the kinds of panels that the dashboard has, with their titles, units and legends; not their colours.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from PIL import Image

from deploy.observability.panels import CHOSEN, STEP
from deploy.observability.scrape import Prometheus, Series

DASHBOARD = Path(__file__).parents[1] / "grafana/polyhead.json"


@dataclass(frozen=True, slots=True)
class Target:
    """One query.

    Attributes:
        legend: Grafana's template of a line's name.
        expression: PromQL with Grafana's variables in it.
        is_instant: whether one moment is asked for, not a range.
    """

    legend: str
    expression: str
    is_instant: bool

    def fill_in(self, *, step: str, span: str) -> str:
        """PromQL without variables: every job and instance, rates over `step`, all of it over `span`."""
        chosen = {STEP: step, CHOSEN: span, "$job": ".*", "$instance": ".*"}
        expression = self.expression
        for name, value in chosen.items():
            expression = expression.replace(name, value)
        return expression


@dataclass(frozen=True, slots=True)
class ShownPanel:
    """One panel.

    Attributes:
        row: title of its row.
        title: of the panel.
        kind: Grafana's type.
        unit: Grafana's name of the unit.
        is_stacked: whether its lines are stacked.
        place: x, y, width and height in the grid of 24 columns.
        targets: its queries.
        columns: of a table, one a query.
        units: of a table, by column.
        hidden: columns and labels that a table does not show.
    """

    row: str
    title: str
    kind: str
    unit: str
    is_stacked: bool
    place: tuple[int, int, int, int]
    targets: tuple[Target, ...]
    columns: tuple[str, ...]
    units: dict[str, str]
    hidden: frozenset[str]


def read_panels(path: Path = DASHBOARD) -> Iterator[ShownPanel]:
    """Every panel of a dashboard in order, including collapsed rows."""
    row = ""
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            yield from (_read_panel(row, inner) for inner in panel.get("panels", ()))
        else:
            yield _read_panel(row, panel)


def _read_panel(row: str, panel: dict[str, Any]) -> ShownPanel:
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    unit = defaults.get("unit") or panel.get("options", {}).get("yAxis", {}).get("unit", "short")
    stacking = defaults.get("custom", {}).get("stacking", {}).get("mode", "none")
    place = panel["gridPos"]
    organize: dict[str, Any] = next(
        (one["options"] for one in panel.get("transformations", ()) if one["id"] == "organize"), {}
    )
    overrides = panel.get("fieldConfig", {}).get("overrides", ())
    return ShownPanel(
        row,
        panel["title"],
        panel["type"],
        unit,
        stacking != "none",
        (place["x"], place["y"], place["w"], place["h"]),
        tuple(Target(one["legendFormat"], one["expr"], one.get("instant", False)) for one in panel["targets"]),
        tuple(organize.get("renameByName", {}).values()),
        {one["matcher"]["options"]: one["properties"][0]["value"] for one in overrides},
        frozenset(organize.get("excludeByName", {})),
    )


LINE_HEIGHT, WIDTH, DPI = 0.28, 15.0, 80  # inches a grid line, inches across, pixels an inch

COLOURS = 200  # of the picture; heatmaps have the most

INK, PALE, GRID, BACKGROUND = "#1f2933", "#6b7785", "#e3e8ee", "#f4f6f9"

LEGEND_MOST, LABELS_MOST = 8, 7  # entries below a panel, labels beside a heatmap

MARGIN = 0.008  # of the width

Query = Callable[[Target], Sequence[Series]]

_STYLE: Any = {  # matplotlib's types list every key as a literal
    "font.size": 8,
    "axes.edgecolor": GRID,
    "axes.labelcolor": PALE,
    "xtick.color": PALE,
    "ytick.color": PALE,
    "text.color": INK,
    "axes.prop_cycle": cycler(
        color=["#2f6fde", "#e8743b", "#19a979", "#945ecf", "#d64550", "#13a4b4", "#b0853a", "#6c8893"]
    ),
}


@dataclass(frozen=True, slots=True)
class Canvas:
    """What every panel is drawn on and with.

    Attributes:
        figure: the whole picture.
        lines: of the grid, from top to bottom.
        query: the data of a target.
        start: of the time range, seconds since 1970.
        end: likewise.
    """

    figure: Figure
    lines: int
    query: Query
    start: float
    end: float


def draw(panels: Sequence[ShownPanel], prometheus: Prometheus, start: float, end: float, path: Path) -> None:
    """Draws all panels over a time range.

    Args:
        panels: the dashboard's.
        prometheus: who has the data.
        start: seconds since 1970.
        end: likewise.
        path: of the PNG.
    """
    step, window = max(1.0, (end - start) / 200), "15s"

    def query(target: Target) -> Sequence[Series]:
        expression = target.fill_in(step=window, span=f"{end - start:.0f}s")
        if target.is_instant:
            return prometheus.query(expression, end)
        return prometheus.query_range(expression, start, end, step)

    lines = max(y + height for _, y, _, height in (panel.place for panel in panels))
    with mpl.rc_context():
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=(WIDTH, lines * LINE_HEIGHT), dpi=DPI, facecolor=BACKGROUND)
        _name_rows(figure, panels, lines)
        for panel in panels:
            _draw_panel(Canvas(figure, lines, query, start, end), panel)
        figure.savefig(path)
    _shrink(path)


def _shrink(path: Path) -> None:
    """Fewer colours: a fraction of the bytes."""
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLOURS).save(path, optimize=True)


def _name_rows(figure: Figure, panels: Iterable[ShownPanel], lines: int) -> None:
    first = {panel.row: panel.place[1] for panel in reversed(list(panels))}
    for row, y in first.items():
        figure.text(MARGIN, 1 - (y - 0.35) / lines, row, fontsize=12, fontweight="bold", va="center")


def _draw_panel(canvas: Canvas, panel: ShownPanel) -> None:
    x, y, columns, lines = panel.place
    figure, line = canvas.figure, 1 / canvas.lines
    left, bottom, width, height = x / 24, 1 - (y + lines) * line, columns / 24, lines * line
    figure.add_artist(_box(left, bottom, width, height, line))
    figure.text(left + MARGIN, bottom + height - 0.7 * line, panel.title, fontsize=9, fontweight="bold", va="center")
    if panel.kind == "stat":
        values = canvas.query(panel.targets[0])
        text = write_value(values[0].values[-1], panel.unit) if values else "no data"
        figure.text(left + MARGIN, bottom + 0.38 * height, text, fontsize=18, fontweight="bold", va="center")
    elif panel.kind == "table":
        axes = figure.add_axes((left + MARGIN, bottom + 0.25 * height, width - 2 * MARGIN, 0.6 * height))
        _draw_table(axes, panel, canvas.query)
    else:
        axes = figure.add_axes((left + 0.042, bottom + 2.15 * line, width - 0.056, height - 3.6 * line))
        _draw_chart(axes, panel, canvas)


def _box(left: float, bottom: float, width: float, height: float, line: float) -> Rectangle:
    """A panel's white ground, with a gap to its neighbours."""
    across, down = 0.002, 0.1 * line
    size = width - 2 * across, height - 2 * down
    return Rectangle((left + across, bottom + down), *size, facecolor="white", edgecolor=GRID, linewidth=0.8, zorder=-1)


def _draw_chart(axes: Axes, panel: ShownPanel, canvas: Canvas) -> None:
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=7.5, pad=4)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if panel.kind == "heatmap":
        _draw_heatmap(axes, canvas.query(panel.targets[0]), panel.unit, canvas.start)
    else:
        found = [(_legend(target, series), series) for target in panel.targets for series in canvas.query(target)]
        _draw_lines(axes, panel, [pair for pair in found if pair[1].is_finite], canvas.start)
    axes.set_xlim(0, canvas.end - canvas.start)
    axes.xaxis.set_major_locator(MultipleLocator(60))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 60:g} min"))


def _draw_lines(axes: Axes, panel: ShownPanel, found: Sequence[tuple[str, Series]], start: float) -> None:
    if panel.is_stacked:
        _stack(axes, found, start)
    else:
        for name, series in found:
            axes.plot([time - start for time in series.times], series.values, linewidth=1.2, label=name)
    top = axes.get_ylim()[1] if any(value > 0 for _, series in found for value in series.values) else 1.0
    axes.set_ylim(0, top)
    axes.set_yticks(_ticks(top, panel.unit))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: write_value(value, panel.unit)))
    columns = panel.place[2]
    handles, names = axes.get_legend_handles_labels()
    axes.legend(
        handles[:LEGEND_MOST],
        names[:LEGEND_MOST],
        loc="upper left",
        bbox_to_anchor=(-0.06, -0.11),
        ncols=4 if columns <= 8 else 6,
        fontsize=7.5,
        frameon=False,
        handlelength=1.0,
        columnspacing=1.0,
        borderpad=0.1,
    )


def _ticks(top: float, unit: str) -> list[float]:
    """Round values from 0 to the top; round in powers of 1024 for bytes."""
    is_binary = unit in ("bytes", "Bps") and top >= 1
    size = 1024.0 ** math.floor(math.log(top, 1024)) if is_binary else 1.0
    return [
        tick * size
        for tick in MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(0, top / size)
        if 0 <= tick * size <= top
    ]


def _stack(axes: Axes, found: Sequence[tuple[str, Series]], start: float) -> None:
    times = sorted({time for _, series in found for time in series.times})
    values = [dict(zip(series.times, series.values, strict=True)) for _, series in found]
    filled = [[value if math.isfinite(value := line.get(time, 0.0)) else 0.0 for time in times] for line in values]
    axes.stackplot([time - start for time in times], filled, labels=[name for name, _ in found], alpha=0.75)


def _draw_heatmap(axes: Axes, found: Sequence[Series], unit: str, start: float) -> None:
    """Cumulative buckets as counts in each, darker for more; one line of cells a bucket."""
    if not found:
        return
    ordered = sorted(found, key=lambda series: float(series.labels["le"]))
    times = sorted({time for series in ordered for time in series.times})
    values = [dict(zip(series.times, series.values, strict=True)) for series in ordered]
    cumulative = np.array([[line.get(time, 0.0) for time in times] for line in values])
    counts = np.diff(cumulative, axis=0, prepend=0.0).clip(min=0)
    used = np.flatnonzero(counts.sum(axis=1) > 0)
    low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, len(ordered))
    edges = np.arange(high - low + 1)
    width = times[1] - times[0] if len(times) > 1 else 1.0
    columns = np.append(np.array(times) - start, times[-1] - start + width)
    shown = np.ma.masked_equal(np.sqrt(counts[low:high]), 0)
    axes.pcolormesh(columns, edges, shown, cmap="Oranges", vmin=0, rasterized=True)
    labels = [series.labels["le"] for series in ordered][low:high]
    apart = -(-len(labels) // LABELS_MOST)
    axes.set_yticks(edges[1::apart], [write_value(float(label), unit) for label in labels[::apart]])


def _draw_table(axes: Axes, panel: ShownPanel, query: Query) -> None:
    columns: list[str] = ["instance"]
    rows: dict[str, dict[str, str]] = {}
    for target, column in zip(panel.targets, panel.columns, strict=True):
        for series in query(target):
            row = rows.setdefault(series.labels["instance"], {"instance": series.labels["instance"]})
            cells: dict[str, Any] = {column: write_value(series.values[-1], panel.units.get(column, "short"))}
            if column in panel.hidden:
                cells = {name: series.labels[name] for name in series.labels if name not in panel.hidden}
            row.update({name: str(value)[:34] for name, value in cells.items()})
            columns += [name for name in cells if name not in columns]
    axes.axis("off")
    if not rows:
        axes.text(0, 1, "no data", va="top")
        return
    texts = [[row.get(column, "") for column in columns] for row in rows.values()]
    made = axes.table(
        cellText=texts, colLabels=columns, loc="upper left", cellLoc="left", colLoc="left", edges="horizontal"
    )
    made.auto_set_font_size(False)
    made.set_fontsize(8)
    made.scale(1, 1.5)
    made.auto_set_column_width(list(range(len(columns))))
    for part in made.get_celld().values():
        part.set_edgecolor(GRID)


def _legend(target: Target, series: Series) -> str:
    name = target.legend
    for label, value in series.labels.items():
        name = name.replace(f"{{{{{label}}}}}", value)
    return re.sub(r"\{\{\w+\}\}", "", name).strip()  # a label that is not there: no pod outside Kubernetes


_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))

_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))

_COUNTS = ((1e6, " M"), (1e3, " k"))


def write_value(value: float, unit: str) -> str:
    """A value with its unit, to three digits; `-` for what is no number."""
    if not math.isfinite(value):
        return "+Inf" if value > 0 else "-"
    if unit == "percentunit":
        return f"{100 * value:.4g} %"
    if unit == "s":
        return _seconds(value)
    if unit in ("bytes", "Bps"):
        return _scaled(value, _BYTES, " B") + ("/s" if unit == "Bps" else "")
    return _scaled(value, _COUNTS, "") + ("/s" if unit == "reqps" else "")


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    if value >= 120:
        return f"{value / 60:.3g} min"
    size, name = next((pair for pair in _TIMES if value >= pair[0]), _TIMES[-1])
    return f"{value / size:.3g} {name}"


def _scaled(value: float, sizes: tuple[tuple[float, str], ...], plain: str) -> str:
    for size, name in sizes:
        if abs(value) >= size:
            return f"{value / size:.3g}{name if name.startswith(' ') else ' ' + name}"
    return f"{value:.3g}{plain}"
