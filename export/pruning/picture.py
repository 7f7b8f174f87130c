"""Curves as pictures: lines with intervals on one scale, the pruning curve among them. SVG, light and dark."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

HEIGHT, TOP, BOTTOM = 300, 30, 40
LEFT, PLOT, LEGEND, RIGHT = 60, 310, 150, 16
COLOURS = ("a", "b", "c", "d", "e")
STYLE = """
:root { color-scheme: light dark; }
text { font: 11px system-ui, sans-serif; fill: light-dark(#5c6670, #98a2ad); }
.title { fill: light-dark(#1d2329, #d9dee3); font-weight: 600; }
path { fill: none; stroke-width: 2; }
.grid { stroke: light-dark(#dde1e5, #333a42); stroke-width: 1; }
.a { stroke: light-dark(#1f5f8b, #7cc0ea); } .b { stroke: #c77d1e; } .c { stroke: #2f9f6f; }
.d { stroke: #a05fb4; } .e { stroke: #8a8f94; } .bar { stroke-width: 1.2; }
.thin { stroke: #8a8f94; stroke-width: 1; opacity: 0.7; }
.dashed { stroke-dasharray: 4 3; stroke-width: 1; }
.chosen { stroke: #c4573f; stroke-width: 1; stroke-dasharray: 2 2; }
"""

At = Callable[[float, float], tuple[float, float]]
"""Where x and y are in the picture."""
Points = Sequence[tuple[float, Mapping[str, float]]]


class Line(NamedTuple):
    """One series: a figure with `mean`, and maybe `low` and `high`, for each x.

    An empty name is in no legend; `kind` is a class of the style, the next colour if it is empty.
    """

    name: str
    points: Points
    kind: str = ""


class Panel(NamedTuple):
    """Lines on one scale, at most five without a kind of their own; a single one has no legend.

    `across` says what x is, on a logarithmic scale or a share maybe; `chosen` is an x to mark.
    """

    title: str
    across: str
    lines: Sequence[Line]
    logarithmic: bool = False
    percent: bool = False
    chosen: float | None = None


def plain(points: Iterable[tuple[float, float]]) -> Points:
    """Points without intervals."""
    return [(x, {"mean": y}) for x, y in points]


def draw_panels(name: str, panels: Sequence[Panel]) -> str:
    """One SVG document, the panels beside each other; `name` is for readers who cannot see it."""
    parts, width = [], 0
    for panel in panels:
        parts.append(f'<g transform="translate({width} 0)">{_draw(panel)}</g>')
        width += LEFT + PLOT + (LEGEND if len(panel.lines) > 1 else RIGHT)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(name)}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def draw_pruning(record: Mapping[str, Any]) -> str:
    """One SVG document from `pruning.json`."""
    curve, chosen = record["curve"], record["chosen_share"]
    lines = [
        Line(
            "" if order else f"{record['random_orders']} random orders",
            plain((point["share"], point["random_points"][order]) for point in curve),
            "thin",
        )
        for order in range(record["random_orders"])
    ]
    lines.append(Line(record["definition"].replace("_", " "), plain((p["share"], p["points"]) for p in curve), "a"))
    what = "Spearman x 100" if record["measure"] == "spearman" else "cosine to the whole network x 100"
    panels = [Panel(f"Quality: {what}", "heads removed", lines, percent=True, chosen=chosen)]
    speeds = []
    for kind, size in zip("abc", record["attention_share"], strict=False):
        timed = [(step["share"], step["batches"][size]) for step in record["latency"]]
        speeds.append(Line(f"batch {size}", plain((share, batch["speed"]) for share, batch in timed), kind))
        speeds.append(Line("", plain((share, batch["bound"]) for share, batch in timed), f"{kind} dashed"))
    title = "Times faster than whole (dashed: bound)"
    panels.append(Panel(title, "heads removed", speeds, percent=True, chosen=chosen))
    return draw_panels(f"Pruning of {record['model']}", panels)


def _draw(panel: Panel) -> str:
    marks = sorted({x for line in panel.lines for x, _ in line.points})
    figures = [point for line in panel.lines for _, point in line.points]
    bounds = [point[name] for point in figures for name in ("mean", "low", "high") if name in point]
    margin = 0.05 * ((max(bounds) - min(bounds)) or abs(max(bounds)) or 1.0)
    low, high = min(bounds) - margin, max(bounds) + margin
    scale: Callable[[float], float] = math.log2 if panel.logarithmic else float
    first, span = scale(marks[0]), (scale(marks[-1]) - scale(marks[0])) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        share = 0.03 + 0.94 * (scale(x) - first) / span
        return LEFT + PLOT * share, TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low)

    parts = [f'<text class="title" x="{LEFT}" y="16">{escape(panel.title)}</text>']
    for step in range(5):
        value = low + (high - low) * step / 4
        _, y = at(marks[0], value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}h{PLOT}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    shown = marks if len(marks) <= 8 else [marks[0], marks[len(marks) // 2], marks[-1]]
    for mark in shown:
        x, y = at(mark, low)
        label = f"{100 * mark:.0f} %" if panel.percent else f"{mark:g}"
        parts.append(f'<text x="{x:.1f}" y="{y + 15:.1f}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{LEFT + PLOT / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(panel.across)}</text>')
    if panel.chosen is not None:
        (x, top), (_, bottom) = at(panel.chosen, high), at(panel.chosen, low)
        parts.append(f'<path class="chosen" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>')
    return "".join([*parts, *_draw_lines(panel.lines, at)])


def _draw_lines(lines: Sequence[Line], at: At) -> Iterable[str]:
    """Lines through the means and a bar for each interval, apart from each other so that no two bars meet."""
    row = 0
    for index, line in enumerate(lines):
        kind, aside = line.kind or COLOURS[index], 0.0 if line.kind else 1.6 * (index - (len(lines) - 1) / 2)
        steps = "L".join(f"{x + aside:.1f} {y:.1f}" for x, y in (at(x, point["mean"]) for x, point in line.points))
        yield f'<path class="{kind}" d="M{steps}"/>'
        for x, point in line.points:
            if "low" in point:
                (across, bottom), (_, top) = at(x, point["low"]), at(x, point["high"])
                yield f'<path class="{kind} bar" d="M{across + aside:.1f} {bottom:.1f}V{top:.1f}"/>'
        if len(lines) > 1 and line.name:
            x, y = LEFT + PLOT + 14, TOP + 12 + 16 * row
            yield f'<path class="{kind}" d="M{x} {y}h16"/><text x="{x + 21}" y="{y + 4}">{escape(line.name)}</text>'
            row += 1
