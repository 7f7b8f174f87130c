"""`python -m deploy.autoscaling`: what the manifests' scaling rules do under some loads, as a table and a picture."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from tqdm import tqdm
from yaml import YAMLError

from benchmarks.lib.command import new_file
from deploy.autoscaling.autoscaler import Rules, read_manifests, read_scaled_object
from deploy.autoscaling.simulation import ASSUMED, CPU, TRACES, Report, Simulation
from export.command import Store
from service.errors import one_line

WIDTH, HEIGHT, DPI = 3.6, 1.9, 90  # inches of one chart, pixels an inch
COLOURS = 32
NEEDED, SERVING, REFUSED = "#6b7785", "#2f6fde", "#d64550"

COLUMNS = f"{'rules':16}{'load':11}{'replicas':>10}{'turns':>7}{'refused':>10}{'p99':>10}"


def describe(name: str, load: str, report: Report) -> str:
    """A line of the table."""
    counts = [row.replicas for row in report.rows]
    replicas = f"{min(counts)} to {max(counts)}"
    p99 = f"{1000 * report.quantile(0.99):.0f} ms"
    return f"{name:16}{load:11}{replicas:>10}{report.turns():7}{report.refused_share():10.2%}{p99:>10}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulates, prints and draws."""
    parser = argparse.ArgumentParser(prog="python -m deploy.autoscaling", description=__doc__)
    parser.register("action", None, Store)
    parser.add_argument("--loads", nargs="+", choices=TRACES, default=list(TRACES), metavar="LOAD", help="%(choices)s")
    parser.add_argument(
        "--compare", type=_scaled_object, default={}, metavar="YAML", help="another ScaledObject, simulated first"
    )
    parser.add_argument("--picture", type=new_file, metavar="PNG", help="where the picture is written")
    given = parser.parse_args(arguments)
    rules = {**given.compare, **read_manifests()}
    runs = [(name, load) for name in rules for load in given.loads]
    reports: dict[tuple[str, str], Report] = {}
    for name, load in tqdm(runs, desc="simulating", unit="run", leave=False, disable=None):
        try:
            reports[name, load] = Simulation(rules[name], ASSUMED.get(name, CPU), TRACES[load]).run()
        except ValueError as error:  # PromQL that is not simulated
            sys.exit(f"python -m deploy.autoscaling: {name}: {one_line(error)}")
    lines = [COLUMNS, *(describe(name, load, report) for (name, load), report in reports.items())]
    lines += [f"{name}: what one replica does is assumed, not measured" for name in ASSUMED]
    sys.stdout.write("\n".join(lines) + "\n")
    if given.picture is not None:
        draw(reports, given.picture)
    return 0


def _scaled_object(text: str) -> dict[str, Rules]:
    path = Path(text)
    if path.stem in read_manifests():
        raise argparse.ArgumentTypeError(f"{path.stem} is compared anyway: give the file another name than {text!r}")
    try:
        return {path.stem: read_scaled_object(path)}
    except (LookupError, OSError, TypeError, ValueError, YAMLError) as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        raise argparse.ArgumentTypeError(f"expected a ScaledObject with metrics of Prometheus: {what}") from error


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
        figure.savefig(path, dpi=DPI, format="png")
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLOURS).save(path, format="png", optimize=True)


def _draw(axes: Axes, title: str, report: Report) -> None:
    minutes = [row.at / 60 for row in report.rows]
    axes.set_title(f"{title}, {report.refused_share():.1%} refused", fontsize=8, loc="left")
    axes.plot(minutes, [row.load / 0.7 for row in report.rows], color=NEEDED, linewidth=1, label="replicas at 70 %")
    axes.step(minutes, [row.ready for row in report.rows], color=SERVING, where="post", label="ready replicas")
    share = [row.refused / max(1, row.arrived) for row in report.rows]
    other = axes.twinx()
    other.fill_between(minutes, share, step="post", color=REFUSED, alpha=0.5, linewidth=0)
    axes.fill_between([], [], color=REFUSED, alpha=0.5, label="refused (right)")
    axes.set_ylim(0, 12)
    other.set_ylim(0, 1)
    axes.set_xlabel("minutes")
    other.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    axes.spines[["top"]].set_visible(False)
    other.spines[["top"]].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
