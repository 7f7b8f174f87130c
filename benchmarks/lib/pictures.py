"""Figures as SVG: curves over a logarithmic axis, and bars with ours in colour."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.command import CannotMeasure

OURS, THEIRS = "#2f7fb3", "#97a2ac"
COLOURS = (OURS, "#c4673a", THEIRS)

Curves = Mapping[str, Sequence[float]]
Bars = Mapping[str, float]


def draw_curves(path: Path, x: Sequence[float], panels: Mapping[str, Curves]) -> None:
    """Writes panels of curves below each other, each with a linear scale from 0; `x`, above 0, is logarithmic."""
    figure, axes = _figure(len(panels), [1.0] * len(panels))
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for colour, (label, values) in zip(COLOURS, curves.items(), strict=False):
            axis.plot(x, values, color=colour, label=label)
        axis.set(title=title, xscale="log", ylim=(0, None))
        axis.set_xticks(x, [f"{value:,g}" for value in x], minor=False)
        axis.minorticks_off()
        axis.legend(frameon=False)
    _write(figure, path)


def draw_bars(path: Path, panels: Mapping[str, Bars], ours: Sequence[str]) -> None:
    """Writes panels of bars below each other, the longest first; panels without bars are left out."""
    filled = {title: bars for title, bars in panels.items() if bars}
    figure, axes = _figure(len(filled), [float(len(bars)) for bars in filled.values()])
    for axis, (title, bars) in zip(axes, filled.items(), strict=True):
        labels = sorted(bars, key=lambda label: bars[label])  # the first bar stands at the bottom
        colours = [OURS if label in ours else THEIRS for label in labels]
        drawn = axis.barh(labels, [bars[label] for label in labels], color=colours)
        axis.bar_label(drawn, fmt="{:,.0f}", padding=4)
        axis.set(title=title, xticks=[])
    _write(figure, path)


def _figure(count: int, heights: list[float]) -> tuple[Any, Any]:
    try:
        from matplotlib import pyplot  # noqa: PLC0415 - of the extra `test`
    except ImportError as error:
        raise CannotMeasure("matplotlib draws pictures: pip install -e '.[test]'") from error
    pyplot.rcParams.update({"svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False})
    size = (8.0, sum(0.8 + 0.25 * height if max(heights) > 1 else 2.6 for height in heights))
    figure, axes = pyplot.subplots(count, 1, figsize=size, height_ratios=heights, squeeze=False, layout="constrained")
    return figure, axes[:, 0]


def _write(figure: Any, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None})
