"""The pruning curve as a picture: quality and speed against the share of heads removed. SVG, light and dark."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

WIDTH, HEIGHT = 340, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 30, 36
STYLE = """
:root { color-scheme: light dark; }
text { font: 11px system-ui, sans-serif; fill: light-dark(#5c6670, #98a2ad); }
.title { fill: light-dark(#1d2329, #d9dee3); font-weight: 600; }
path { fill: none; stroke-width: 2; }
.grid { stroke: light-dark(#dde1e5, #333a42); stroke-width: 1; }
.a { stroke: light-dark(#1f5f8b, #7cc0ea); } .b { stroke: #c77d1e; } .c { stroke: #2f9f6f; }
.thin { stroke: light-dark(#8a8f94, #8a8f94); stroke-width: 1; opacity: 0.7; }
.dashed { stroke-dasharray: 4 3; stroke-width: 1; }
.chosen { stroke: #c4573f; stroke-width: 1; stroke-dasharray: 2 2; }
"""

Series = tuple[str, str, Sequence[tuple[float, float]]]
"""Name (empty for none), class of the style, points."""


class Panel(NamedTuple):
    """Curves over the share of heads removed, 0 to 1.

    Attributes:
        title: what is shown.
        series: one scale for all of them.
        chosen: a share to mark, None for none.
    """

    title: str
    series: Sequence[Series]
    chosen: float | None = None


def draw_pruning(record: Mapping[str, Any]) -> str:
    """One SVG document from `pruning.json`."""
    panels = [_quality_panel(record)]
    if record["latency"]:
        panels.append(_speed_panel(record))
    return draw_panels(f"Pruning of {record['model']}", panels)


def draw_panels(name: str, panels: Sequence[Panel]) -> str:
    """One SVG document, the panels beside each other.

    Args:
        name: of the picture, for who cannot see it.
        panels: what is drawn.
    """
    drawn = (f'<g transform="translate({index * WIDTH} 0)">{_draw(panel)}</g>' for index, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(panels)} {HEIGHT}" '
        f'width="{WIDTH * len(panels)}" height="{HEIGHT}" role="img" aria-label="{escape(name)}">'
        f"<style>{STYLE}</style>{''.join(drawn)}</svg>\n"
    )


def _quality_panel(record: Mapping[str, Any]) -> Panel:
    curve = record["curve"]
    randoms = [
        (f"{record['random_orders']} random orders" if not index else "", "thin", points)
        for index, points in enumerate(
            [
                [(point["share"], point["random_points"][order]) for point in curve]
                for order in range(record["random_orders"])
            ]
        )
    ]
    by_importance = (record["definition"].replace("_", " "), "a", [(p["share"], p["points"]) for p in curve])
    what = "Spearman x 100" if record["measure"] == "spearman" else "cosine to the whole network x 100"
    return Panel(f"Quality: {what}", [*randoms, by_importance], record["chosen_share"])


def _speed_panel(record: Mapping[str, Any]) -> Panel:
    series: list[Series] = []
    for kind, size in zip("abc", record["attention_share"], strict=False):
        timed = [(step["share"], step["batches"][size]) for step in record["latency"]]
        series.append((f"batch {size}", kind, [(share, batch["speed"]) for share, batch in timed]))
        series.append(("", f"{kind} dashed", [(share, batch["bound"]) for share, batch in timed]))
    return Panel("Times faster than whole (dashed: bound)", series, record["chosen_share"])


def _draw(panel: Panel) -> str:
    title, series, chosen = panel
    values = [y for *_, points in series for _, y in points]
    low, high = min(values), max(values)
    margin = 0.06 * ((high - low) or 1.0)
    low, high = low - margin, high + margin
    most = max(x for *_, points in series for x, _ in points) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / most
        return across, TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low)

    parts = [f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>', *_grid(at, low, high, most)]
    for _, kind, points in series:
        steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*point) for point in points))
        parts.append(f'<path class="{kind}" d="M{steps}"/>')
    if chosen is not None:
        (x, top), (_, bottom) = at(chosen, high), at(chosen, low)
        parts.append(f'<path class="chosen" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>')
    rises = series[-1][2][-1][1] > series[-1][2][0][1]
    return "".join([*parts, *_legend(series, on_top=rises)])


def _grid(at: Any, low: float, high: float, most: float) -> Iterable[str]:
    for step in range(5):
        value = low + (high - low) * step / 4
        (x, y), (end, _) = at(0, value), at(most, value)
        yield f'<path class="grid" d="M{x:.1f} {y:.1f}H{end:.1f}"/>'
        yield f'<text x="{x - 5:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
    for percent in range(0, round(100 * most) + 1, 20):
        x, y = at(percent / 100, low)
        yield f'<text x="{x:.1f}" y="{y + 15:.1f}" text-anchor="middle">{percent} %</text>'
    x, y = at(most / 2, low)
    yield f'<text x="{x:.1f}" y="{y + 29:.1f}" text-anchor="middle">heads removed</text>'


def _legend(series: Sequence[Series], *, on_top: bool) -> Iterable[str]:
    """In the corner on the left that the lines leave free."""
    named = [(name, kind) for name, kind, _ in series if name]
    first = TOP + 12 if on_top else HEIGHT - BOTTOM - 12 - 14 * (len(named) - 1)
    for row, (name, kind) in enumerate(named):
        y = first + 14 * row
        yield f'<path class="{kind}" d="M{LEFT + 8} {y}h16"/><text x="{LEFT + 29}" y="{y + 4}">{escape(name)}</text>'
