"""Rates as a picture: horizontal bars in panels, ours in colour. SVG, light and dark, no script.

It knows neither what was measured nor in which unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
LABELS = 300  # units of the picture to the left of the bars
NUMBERS = 64  # and to the right of the longest
ROW, BAR, HEAD = 22, 14, 34
STYLE = """
:root { color-scheme: light dark; }
text { font: 12px system-ui, sans-serif; fill: light-dark(#3c454d, #b6bfc8); }
.title { fill: light-dark(#1d2329, #d9dee3); font-weight: 600; }
.ours { fill: light-dark(#1f5f8b, #7cc0ea); }
.theirs { fill: light-dark(#aab3bb, #5a646e); }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One measured rate.

    Attributes:
        label: whose.
        value: at least 0.
        is_ours: this project's.
    """

    label: str
    value: float
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars that may be compared: one scale, which begins at 0."""

    title: str
    bars: Sequence[Bar]


def draw_bars(name: str, panels: Sequence[Panel]) -> str:
    """One SVG document: the panels below each other, the bars of each from the longest to the shortest.

    Args:
        name: of the picture, for who cannot see it.
        panels: those without a bar are left out.
    """
    parts, top = [], 0
    for panel in panels:
        if panel.bars:
            parts.append(f'<g transform="translate(0 {top})">{_draw_panel(panel)}</g>')
            top += HEAD + ROW * len(panel.bars)
    height = top + ROW // 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(name)}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def _draw_panel(panel: Panel) -> str:
    longest = max(bar.value for bar in panel.bars) or 1.0
    scale = (WIDTH - LABELS - NUMBERS) / longest
    parts = [f'<text class="title" x="8" y="22">{escape(panel.title)}</text>']
    for row, bar in enumerate(sorted(panel.bars, key=lambda bar: -bar.value)):
        top, length = HEAD + ROW * row, bar.value * scale
        whose = "ours" if bar.is_ours else "theirs"
        parts += [
            f'<text x="{LABELS - 8}" y="{top + BAR - 3}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect class="{whose}" x="{LABELS}" y="{top}" width="{length:.1f}" height="{BAR}"/>',
            f'<text x="{LABELS + length + 6:.1f}" y="{top + BAR - 3}">{bar.value:,.0f}</text>',
        ]
    return "".join(parts)
