"""The dashboard's panels drawn from a Prometheus that has their data, as one PNG: what Grafana shows, without Grafana.

It draws the kinds of panels that the dashboard has, with their titles, units and legends; not their colours. A panel is
Grafana's JSON, with the title of its row as `row`.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, MultipleLocator
from PIL import Image

from deploy.observability.panels import CHOSEN, STEP
from deploy.observability.scrape import Prometheus, Series

DASHBOARD = Path(__file__).parents[1] / "grafana/polyhead.json"

LINE_HEIGHT, WIDTH, DPI = 0.28, 15.0, 80  # inches a grid line, inches across, pixels an inch
COLOURS = 200  # of the picture; heatmaps have the most
INK, PALE, GRID, BACKGROUND = "#1f2933", "#6b7785", "#e3e8ee", "#f4f6f9"
LEGEND_MOST, LABELS_MOST = 8, 7  # entries below a panel, labels beside a heatmap
MARGIN = 0.008  # of the width

Panel = dict[str, Any]
Target = dict[str, Any]
Found = Sequence[tuple[Target, Series]]  # the data of a panel's queries

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


def read_panels() -> Iterator[Panel]:
    """Every panel of the dashboard in order, including collapsed rows."""
    row = ""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            yield from ({"row": row, **inner} for inner in panel.get("panels", ()))
        else:
            yield {"row": row, **panel}


def fill_in(expression: str, *, step: str, span: str) -> str:
    """PromQL without Grafana's variables: every job and instance, rates over `step`, all of it over `span`."""
    for name, value in {STEP: step, CHOSEN: span, "$job": ".*", "$instance": ".*"}.items():
        expression = expression.replace(name, value)
    return expression


def ask(prometheus: Prometheus, target: Target, start: float, end: float, *, step: str) -> list[Series]:
    """The data of a query between two moments in seconds since 1970, or at the second one, as the query wants it."""
    expression = fill_in(target["expr"], step=step, span=f"{end - start:.0f}s")
    if target.get("instant", False):
        return prometheus.query(expression, end)
    return prometheus.query_range(expression, start, end, max(1.0, (end - start) / 200))


def draw(panels: Sequence[Panel], prometheus: Prometheus, start: float, end: float, path: Path) -> None:
    """Draws panels as a PNG, between two moments in seconds since 1970."""
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH, lines * LINE_HEIGHT), dpi=DPI, facecolor=BACKGROUND)
        for row, y in {panel["row"]: panel["gridPos"]["y"] for panel in reversed(panels)}.items():
            figure.text(MARGIN, 1 - (y - 0.35) / lines, row, fontsize=12, fontweight="bold", va="center")
        for panel in panels:
            targets = panel["targets"]
            found = [(one, series) for one in targets for series in ask(prometheus, one, start, end, step="15s")]
            _draw_panel(figure, panel, found, start, end)
        figure.savefig(path)
    with Image.open(path) as picture:  # fewer colours: a fraction of the bytes
        picture.convert("RGB").quantize(COLOURS).save(path, optimize=True)


def _draw_panel(figure: Figure, panel: Panel, found: Found, start: float, end: float) -> None:
    x, y, columns, lines = (panel["gridPos"][name] for name in "xywh")
    line = LINE_HEIGHT / figure.get_figheight()
    left, bottom, width, height = x / 24, 1 - (y + lines) * line, columns / 24, lines * line
    across, down = 0.002, 0.1 * line  # a gap to its neighbours
    place, size = (left + across, bottom + down), (width - 2 * across, height - 2 * down)
    figure.add_artist(Rectangle(place, *size, facecolor="white", edgecolor=GRID, linewidth=0.8, zorder=-1))
    figure.text(left + MARGIN, bottom + height - 0.7 * line, panel["title"], fontsize=9, fontweight="bold", va="center")
    if panel["type"] == "stat":
        text = write_value(found[0][1].values[-1], _unit(panel)) if found else "no data"
        figure.text(left + MARGIN, bottom + 0.38 * height, text, fontsize=18, fontweight="bold", va="center")
    elif panel["type"] == "table":
        axes = figure.add_axes((left + MARGIN, bottom + 0.25 * height, width - 2 * MARGIN, 0.6 * height))
        _draw_table(axes, panel, found)
    else:
        axes = figure.add_axes((left + 0.042, bottom + 2.15 * line, width - 0.056, height - 3.6 * line))
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, labelsize=7.5, pad=4)
        axes.spines[["top", "right", "left"]].set_visible(False)
        if panel["type"] == "heatmap":
            _draw_heatmap(axes, [series for _, series in found], _unit(panel), start)
        else:
            _draw_lines(axes, panel, [pair for pair in found if pair[1].is_finite], start)
        axes.set_xlim(0, end - start)
        axes.xaxis.set_major_locator(MultipleLocator(60))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 60:g} min"))


def _unit(panel: Panel) -> str:
    of_axis: str = panel.get("options", {}).get("yAxis", {}).get("unit", "short")
    return panel.get("fieldConfig", {}).get("defaults", {}).get("unit") or of_axis


def _draw_lines(axes: Axes, panel: Panel, found: Found, start: float) -> None:
    names = [_legend(target["legendFormat"], series) for target, series in found]
    lines = [series for _, series in found]
    if panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] != "none":
        times, values = _table(lines)
        axes.stackplot(times - start, values, labels=names, alpha=0.75)
    else:
        for name, series in zip(names, lines, strict=True):
            axes.plot([time - start for time in series.times], series.values, linewidth=1.2, label=name)
    top = axes.get_ylim()[1] if any(value > 0 for series in lines for value in series.values) else 1.0
    axes.set_ylim(0, top)
    is_binary = _unit(panel) in ("bytes", "Bps") and top >= 1
    size = 1024.0 ** math.floor(math.log(top, 1024)) if is_binary else 1.0
    ticks = np.asarray(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(0, top / size)) * size
    axes.set_yticks(ticks[(ticks >= 0) & (ticks <= top)])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: write_value(value, _unit(panel))))
    handles, names = axes.get_legend_handles_labels()
    axes.legend(
        handles[:LEGEND_MOST],
        names[:LEGEND_MOST],
        loc="upper left",
        bbox_to_anchor=(-0.06, -0.11),
        ncols=4 if panel["gridPos"]["w"] <= 8 else 6,
        fontsize=7.5,
        frameon=False,
        handlelength=1.0,
        columnspacing=1.0,
        borderpad=0.1,
    )


def _table(found: Sequence[Series]) -> tuple[Any, Any]:
    """The times of all lines [T], and the value of each line then [lines, T]: 0 where it has none."""
    times = sorted({time for series in found for time in series.times})
    lines = [dict(zip(series.times, series.values, strict=True)) for series in found]
    values = np.array([[line.get(time, 0.0) for time in times] for line in lines])
    return np.array(times), np.where(np.isfinite(values), values, 0.0)


def _draw_heatmap(axes: Axes, found: Sequence[Series], unit: str, start: float) -> None:
    """Cumulative buckets as counts in each, darker for more; one line of cells a bucket."""
    if not found:
        return
    ordered = sorted(found, key=lambda series: float(series.labels["le"]))
    times, cumulative = _table(ordered)
    counts = np.diff(cumulative, axis=0, prepend=0.0).clip(min=0)
    used = np.flatnonzero(counts.sum(axis=1) > 0)
    low, high = (used[0], used[-1] + 1) if len(used) else (0, len(ordered))
    edges = np.arange(high - low + 1)
    width = times[1] - times[0] if len(times) > 1 else 1.0
    columns = np.append(times, times[-1] + width) - start
    shown = np.ma.masked_equal(np.sqrt(counts[low:high]), 0)
    axes.pcolormesh(columns, edges, shown, cmap="Oranges", vmin=0, rasterized=True)
    labels = [series.labels["le"] for series in ordered][low:high]
    apart = -(-len(labels) // LABELS_MOST)
    axes.set_yticks(edges[1::apart], [write_value(float(label), unit) for label in labels[::apart]])


def _draw_table(axes: Axes, panel: Panel, found: Found) -> None:
    """A line an instance, a column a query; of a query whose column is hidden, the labels that are not."""
    organize = next(one["options"] for one in panel["transformations"] if one["id"] == "organize")
    names, hidden = organize["renameByName"], organize["excludeByName"]
    units = {one["matcher"]["options"]: one["properties"][0]["value"] for one in panel["fieldConfig"]["overrides"]}
    columns: list[str] = ["instance"]
    rows: dict[str, dict[str, str]] = {}
    for target, series in found:
        row = rows.setdefault(series.labels["instance"], {"instance": series.labels["instance"]})
        column = names[f"Value #{target['refId']}"]
        cells: dict[str, Any] = {column: write_value(series.values[-1], units.get(column, "short"))}
        if column in hidden:
            cells = {name: series.labels[name] for name in series.labels if name not in hidden}
        row |= {name: str(value)[:34] for name, value in cells.items()}
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


def _legend(name: str, series: Series) -> str:
    for label, value in series.labels.items():
        name = name.replace(f"{{{{{label}}}}}", value)
    return re.sub(r"\{\{\w+\}\}", "", name).strip()  # a label that is not there: no pod outside Kubernetes


def write_value(value: float, unit: str) -> str:
    """A value with its unit, to three digits; `-` for what is no number."""
    if not math.isfinite(value):
        return "+Inf" if value > 0 else "-"
    if unit == "percentunit":
        return f"{100 * value:.4g} %"
    if unit in ("bytes", "Bps"):
        power = min(3, int(math.log(max(1.0, abs(value)), 1024)))
        name = ("B", "KiB", "MiB", "GiB")[power] + ("/s" if unit == "Bps" else "")
        return f"{value / 1024**power:.3g} {name}"
    if unit == "s" and value >= 120:
        return f"{value / 60:.3g} min"
    if unit == "s":
        return EngFormatter("s")(float(f"{value:.3g}"))
    scaled = EngFormatter()(float(f"{value:.3g}")) if abs(value) >= 1 else f"{value:.3g}"
    return scaled + ("/s" if unit == "reqps" else "")
