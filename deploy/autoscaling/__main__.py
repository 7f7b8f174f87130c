"""`python -m deploy.autoscaling`: what the manifests' scaling rules do under some loads, as a table and a picture."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from deploy.autoscaling import rules
from deploy.autoscaling.picture import draw
from deploy.autoscaling.replicas import CPU, GPU, Machine
from deploy.autoscaling.simulation import Report, Simulation
from deploy.autoscaling.traces import TRACES

COLUMNS = f"{'rules':16}{'load':11}{'replicas':>10}{'turns':>7}{'refused':>10}{'worst p99':>11}"


def settings(compared: Path | None) -> Iterator[tuple[str, rules.Rules, Machine]]:
    """What is simulated: a name, rules and a machine."""
    if compared is not None:
        yield compared.stem, rules.read_scaled_object(compared), CPU
    yield "autoscale", rules.keda(), CPU
    yield "autoscale-hpa", rules.cpu_only(), CPU
    yield "autoscale-gpu", rules.keda_gpu(), GPU


def describe(name: str, load: str, report: Report) -> str:
    """A line of the table."""
    counts = [row.replicas for row in report.rows]
    worst = max(row.p99 for row in report.rows)
    replicas = f"{min(counts)} to {max(counts)}"
    return f"{name:16}{load:11}{replicas:>10}{report.turns():7}{report.refused_share():10.2%}{1000 * worst:8.0f} ms"


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulates, prints and draws."""
    given = _parse(arguments)
    runs = [(name, one, machine, load) for name, one, machine in settings(given.compare) for load in given.loads]
    reports: dict[tuple[str, str], Report] = {}
    for name, one, machine, load in tqdm(runs, desc="simulating", unit="run", leave=False, disable=None):
        reports[name, load] = Simulation(one, machine, TRACES[load], seed=given.seed).run()
    lines = [COLUMNS, *(describe(name, load, report) for (name, load), report in reports.items())]
    assumed = {name for name, _, machine, _ in runs if not machine.is_measured}
    lines += [f"{name}: what one replica does is assumed, not measured" for name in sorted(assumed)]
    sys.stdout.write("\n".join(lines) + "\n")
    if given.picture is not None:
        draw(reports, given.picture)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.autoscaling", description=__doc__)
    parser.add_argument("--loads", nargs="+", choices=TRACES, default=list(TRACES), metavar="LOAD", help="%(choices)s")
    parser.add_argument("--compare", type=Path, metavar="YAML", help="another ScaledObject, simulated first")
    parser.add_argument("--picture", type=Path, metavar="PNG", help="where the picture is written")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals (default: %(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
