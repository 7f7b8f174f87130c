"""A run's curves as a picture: the loss, and the score on examples that are not trained on. SVG, light and dark."""

from collections.abc import Sequence
from html import escape

from export.pruning.picture import STYLE
from train.progress import Progress

WIDTH, HEIGHT = 340, 230
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 30, 36

Points = Sequence[tuple[float, float]]


def draw_curves(progress: Progress, command: str, score: str) -> str:
    """One SVG document."""
    losses = [(float(step), loss) for step, loss, _ in progress.losses]
    scores = [(figures["step"], figures[score]) for figures in progress.evaluations]
    panels = [("Loss", losses, "a"), (f"{score.replace('_', ' ')}, held out", scores, "c")]
    drawn = [panel(title, points, kind) for title, points, kind in panels if points]
    placed = "".join(f'<g transform="translate({index * WIDTH} 0)">{part}</g>' for index, part in enumerate(drawn))
    width = WIDTH * len(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        f'role="img" aria-label="Curves of {escape(command)}"><style>{STYLE}</style>{placed}</svg>\n'
    )


def panel(title: str, points: Points, kind: str) -> str:
    """One line over steps."""
    values = [y for _, y in points]
    low, high = min(values), max(values)
    margin = 0.06 * ((high - low) or abs(high) or 1.0)
    low, high = low - margin, high + margin
    most = max(x for x, _ in points) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / most
        return across, TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low)

    parts = [f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>']
    for tick in range(5):
        value = low + (high - low) * tick / 4
        (x, y), (end, _) = at(0, value), at(most, value)
        parts.append(f'<path class="grid" d="M{x:.1f} {y:.1f}H{end:.1f}"/>')
        parts.append(f'<text x="{x - 5:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for share in (0.0, 0.5, 1.0):
        x, y = at(share * most, low)
        parts.append(f'<text x="{x:.1f}" y="{y + 15:.1f}" text-anchor="middle">{share * most:.0f}</text>')
    x, y = at(most / 2, low)
    parts.append(f'<text x="{x:.1f}" y="{y + 29:.1f}" text-anchor="middle">steps</text>')
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*point) for point in points))
    parts.append(f'<path class="{kind}" d="M{line}"/>')
    return "".join(parts)
