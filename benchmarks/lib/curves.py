"""Curves over a logarithmic axis as a picture, in panels. SVG, light and dark, no script.

It knows neither what was measured nor in which unit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 220  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 34, 34  # units around its curves
TICKS = 4  # lines above the lowest
COLOURS = ("light-dark(#1f5f8b, #7cc0ea)", "light-dark(#b4552d, #f0a27c)", "light-dark(#6a7681, #97a2ac)")
STYLE = """
:root { color-scheme: light dark; }
text { font: 12px system-ui, sans-serif; fill: light-dark(#3c454d, #b6bfc8); }
.title { fill: light-dark(#1d2329, #d9dee3); font-weight: 600; }
.axis { stroke: light-dark(#d5dbe0, #3a424a); }
polyline { fill: none; stroke-width: 2; }
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over the panel's x.

    Attributes:
        label: what they are.
        values: at least 0, one for each x.
    """

    label: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class CurvePanel:
    """Curves that may be compared: one scale, which begins at 0.

    Attributes:
        title: what is shown.
        x: above 0, ascending.
        curves: three at most.
    """

    title: str
    x: Sequence[float]
    curves: Sequence[Curve]


def draw_curves(name: str, panels: Sequence[CurvePanel]) -> str:
    """One SVG document, the panels below each other.

    Args:
        name: of the picture, for who cannot see it.
        panels: what is drawn.
    """
    parts = [f'<g transform="translate(0 {HEIGHT * row})">{_draw_panel(panel)}</g>' for row, panel in enumerate(panels)]
    height = HEIGHT * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(name)}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def _draw_panel(panel: CurvePanel) -> str:
    step = _round_step(max(max(curve.values) for curve in panel.curves) / TICKS)
    across = {x: _place(x, panel.x) for x in panel.x}
    parts = [f'<text class="title" x="8" y="20">{escape(panel.title)}</text>']
    for tick in range(TICKS + 1):
        y = _height(tick * step, step)
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick * step:,g}</text>')
    for x, place in across.items():
        parts.append(f'<text x="{place:.1f}" y="{HEIGHT - 14}" text-anchor="middle">{x:,g}</text>')
    for colour, curve in zip(COLOURS, panel.curves, strict=False):
        points = [(across[x], _height(value, step)) for x, value in zip(panel.x, curve.values, strict=True)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{drawn}" style="stroke: {colour}"/>')
        label = escape(curve.label)
        parts.append(
            f'<text x="{points[-1][0] + 8:.1f}" y="{points[-1][1] + 4:.1f}" style="fill: {colour}">{label}</text>'
        )
    return "".join(parts)


def _place(x: float, all_x: Sequence[float]) -> float:
    low, high = math.log(all_x[0]), math.log(all_x[-1])
    share = (math.log(x) - low) / (high - low) if high > low else 0.5
    return LEFT + 12 + share * (WIDTH - RIGHT - LEFT - 24)


def _height(value: float, step: float) -> float:
    return HEIGHT - BOTTOM - value / (TICKS * step) * (HEIGHT - TOP - BOTTOM)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, ... that is at least so large."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
