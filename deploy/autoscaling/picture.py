"""The reports as a picture: a column for each autoscaler, a row for each load."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from deploy.autoscaling.simulation import Report

WIDTH, HEIGHT, DPI = 3.6, 1.9, 90  # inches of one chart, pixels an inch
COLOURS = 32
NEEDED, SERVING, REFUSED = "#6b7785", "#2f6fde", "#d64550"


def draw(reports: Mapping[tuple[str, str], Report], path: Path) -> None:
    """Writes a PNG; `reports` are by the autoscaler's name and the load's."""
    names = list(dict.fromkeys(name for name, _ in reports))
    loads = list(dict.fromkeys(load for _, load in reports))
    with mpl.rc_context({"font.size": 8}):
        figure = Figure(figsize=(WIDTH * len(names), HEIGHT * len(loads)), layout="constrained")
        charts = figure.subplots(len(loads), len(names), squeeze=False)
        for (name, load), report in reports.items():
            _draw(charts[loads.index(load)][names.index(name)], f"{name}: {load}", report)
        handles, labels = charts[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, dpi=DPI)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLOURS).save(path, optimize=True)


def _draw(axes: Axes, title: str, report: Report) -> None:
    minutes = [row.at / 60 for row in report.rows]
    axes.set_title(f"{title}, {report.refused_share():.1%} refused", fontsize=8, loc="left")
    axes.plot(minutes, [row.load / 0.7 for row in report.rows], color=NEEDED, linewidth=1, label="replicas at 70 %")
    axes.step(minutes, [row.ready for row in report.rows], color=SERVING, where="post", label="ready replicas")
    share = [row.refused / row.arrived for row in report.rows]
    other = axes.twinx()
    other.fill_between(minutes, share, step="post", color=REFUSED, alpha=0.5, linewidth=0)
    axes.fill_between([], [], color=REFUSED, alpha=0.5, label="refused (right)")
    axes.set_ylim(0, 12)
    other.set_ylim(0, 1)
    axes.set_xlabel("minutes")
    other.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    for one in (axes, other):
        one.spines[["top"]].set_visible(False)
