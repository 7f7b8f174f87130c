"""Curves as pictures: a run's loss and score, an experiment's means with their intervals. SVG, light and dark."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from export.pruning.picture import STYLE

HEIGHT, TOP, BOTTOM = 300, 30, 40
LEFT, PLOT, LEGEND, RIGHT = 60, 310, 150, 16
COLOURS = ("a", "b", "c", "d", "e")
OWN_STYLE = ".d { stroke: #a05fb4; } .e { stroke: #8a8f94; } .bar { stroke-width: 1.2; }"

At = Callable[[float, float], tuple[float, float]]
"""Where x and y are in the picture."""


class Line(NamedTuple):
    """One series: its name, and a figure with `mean`, and maybe `low` and `high`, for each x."""

    name: str
    points: Sequence[tuple[float, Mapping[str, float]]]


class Panel(NamedTuple):
    """Lines on one scale.

    Attributes:
        title: above the lines.
        across: what x is.
        lines: at most five; a single one has no legend.
        logarithmic: whether x is on a logarithmic scale.
        percent: whether x is a share.
    """

    title: str
    across: str
    lines: Sequence[Line]
    logarithmic: bool = False
    percent: bool = False


def draw_curves(
    name: str, losses: Sequence[tuple[float, float]], scores: Sequence[tuple[float, float]], score: str
) -> str:
    """A run's loss, and its score on examples that are not trained on, over steps, as one SVG document."""
    shown = {"Loss": losses, f"{score.replace('_', ' ')}, held out": scores}
    return draw_panels(
        name,
        [
            Panel(title, "steps", [Line(title, [(step, {"mean": value}) for step, value in points])])
            for title, points in shown.items()
            if points
        ],
    )


def draw_panels(name: str, panels: Sequence[Panel]) -> str:
    """One SVG document, the panels beside each other; `name` is for who cannot see it."""
    parts, width = [], 0
    for panel in panels:
        parts.append(f'<g transform="translate({width} 0)">{_draw(panel)}</g>')
        width += LEFT + PLOT + (LEGEND if len(panel.lines) > 1 else RIGHT)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(name)}"><style>{STYLE}{OWN_STYLE}</style>{"".join(parts)}</svg>\n'
    )


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
    for index, line in enumerate(panel.lines):
        parts += _draw_line(at, line, COLOURS[index], 1.6 * (index - (len(panel.lines) - 1) / 2))
        x, y = LEFT + PLOT + 14, TOP + 12 + 16 * index
        if len(panel.lines) > 1:
            parts.append(f'<path class="{COLOURS[index]}" d="M{x} {y}h16"/>')
            parts.append(f'<text x="{x + 21}" y="{y + 4}">{escape(line.name)}</text>')
    return "".join(parts)


def _draw_line(at: At, line: Line, colour: str, aside: float) -> list[str]:
    """A line through the means and a bar for each interval, moved aside a little so that bars do not overlap."""
    steps = "L".join(f"{x + aside:.1f} {y:.1f}" for x, y in (at(x, point["mean"]) for x, point in line.points))
    parts = [f'<path class="{colour}" d="M{steps}"/>']
    for x, point in line.points:
        if "low" in point:
            (across, bottom), (_, top) = at(x, point["low"]), at(x, point["high"])
            parts.append(f'<path class="{colour} bar" d="M{across + aside:.1f} {bottom:.1f}V{top:.1f}"/>')
    return parts
