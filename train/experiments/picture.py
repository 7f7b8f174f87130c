"""Scores with their intervals over one quantity, as a picture. SVG, light and dark."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from export.pruning.picture import STYLE

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 30, 40
COLOURS = ("a", "b", "c", "d", "e")
OWN_STYLE = ".d { stroke: #a05fb4; } .e { stroke: #8a8f94; } .bar { stroke-width: 1.2; }"


class Line(NamedTuple):
    """One series: its name, and a figure with `mean`, `low` and `high` for each x."""

    name: str
    points: Sequence[tuple[float, Mapping[str, float]]]


def draw_lines(
    title: str, across: str, lines: Sequence[Line], *, logarithmic: bool = False, percent: bool = False
) -> str:
    """One SVG document.

    Args:
        title: above the picture.
        across: what x is.
        lines: at most five.
        logarithmic: whether x goes by powers of 2.
        percent: whether x is a share.
    """
    marks = sorted({x for line in lines for x, _ in line.points})
    bounds = [point[end] for line in lines for _, point in line.points for end in ("low", "high")]
    margin = 0.05 * ((max(bounds) - min(bounds)) or 1.0)
    low, high = min(bounds) - margin, max(bounds) + margin
    scale: Callable[[float], float] = math.log2 if logarithmic else float
    first, span = scale(marks[0]), (scale(marks[-1]) - scale(marks[0])) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        share = 0.03 + 0.94 * (scale(x) - first) / span
        return LEFT + (WIDTH - LEFT - RIGHT) * share, TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low)

    parts = [f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>', *_grid(at, marks, low, high, percent)]
    for index, line in enumerate(lines):
        parts += _drawn(at, line, COLOURS[index], 1.6 * (index - (len(lines) - 1) / 2))
        y = TOP + 12 + 16 * index
        x = WIDTH - RIGHT + 14
        parts.append(
            f'<path class="{COLOURS[index]}" d="M{x} {y}h16"/><text x="{x + 21}" y="{y + 4}">{escape(line.name)}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(title)}"><style>{STYLE}{OWN_STYLE}</style>{"".join(parts)}</svg>\n'
    )


def _drawn(at: Any, line: Line, kind: str, aside: float) -> list[str]:
    """A line through the means and a bar for each interval, a little beside each other's."""
    steps = "L".join(f"{x + aside:.1f} {y:.1f}" for x, y in (at(x, point["mean"]) for x, point in line.points))
    parts = [f'<path class="{kind}" d="M{steps}"/>']
    for x, point in line.points:
        (across, bottom), (_, top) = at(x, point["low"]), at(x, point["high"])
        parts.append(f'<path class="{kind} bar" d="M{across + aside:.1f} {bottom:.1f}V{top:.1f}"/>')
    return parts


def _grid(at: Any, marks: Sequence[float], low: float, high: float, percent: bool) -> list[str]:
    parts = []
    for step in range(5):
        value = low + (high - low) * step / 4
        (x, y), (end, _) = at(marks[0], value), at(marks[-1], value)
        parts.append(f'<path class="grid" d="M{x:.1f} {y:.1f}H{end:.1f}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for mark in marks:
        x, y = at(mark, low)
        shown = f"{100 * mark:.0f} %" if percent else f"{mark:g}"
        parts.append(f'<text x="{x:.1f}" y="{y + 15:.1f}" text-anchor="middle">{shown}</text>')
    return parts
