"""The loop: arrivals, replicas, scrapes and the autoscaler, step by step, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import yaml

from deploy.autoscaling.autoscaler import SYNC_SECONDS, Autoscaler, Usage
from deploy.autoscaling.replicas import STEP, TEXT_TOKENS, Machine, Replica, Step, advance
from deploy.autoscaling.rules import COMPONENTS, Rules
from deploy.autoscaling.samples import Samples
from deploy.autoscaling.traces import Trace

RECORD_SECONDS = 15.0  # a row of the report
CPU_SECONDS = 15.0  # the metrics server's resolution


def scrape_interval(monitor: Path = COMPONENTS / "monitoring/podmonitor.yaml") -> float:
    """Seconds between two scrapes, as the PodMonitor says."""
    (endpoint,) = yaml.safe_load(monitor.read_text(encoding="utf-8"))["spec"]["podMetricsEndpoints"]
    return float(endpoint["interval"].removesuffix("s"))


@dataclass(frozen=True, slots=True)
class Row:
    """A quarter of a minute: replicas that are ready and all, waiting tokens, p99 in seconds, requests, refused."""

    at: float
    load: float
    ready: int
    replicas: int
    queue: float
    p99: float
    arrived: float
    refused: float


@dataclass(slots=True)
class Report:
    """What a simulation saw, row by row."""

    rows: list[Row] = field(default_factory=list)

    def refused_share(self, start: float = 0.0, end: float = float("inf")) -> float:
        """Refused requests of all that came in these seconds."""
        rows = [row for row in self.rows if start < row.at <= end]
        return sum(row.refused for row in rows) / max(1.0, sum(row.arrived for row in rows))

    def turns(self) -> int:
        """How often the number of replicas changed its direction."""
        counts = [row.replicas for row in self.rows]
        moves = [after - before for before, after in pairwise(counts) if after != before]
        return sum(one * other < 0 for one, other in pairwise(moves))


class Simulation:
    """Some replicas under a load and an autoscaler."""

    def __init__(self, rules: Rules, machine: Machine, trace: Trace, *, seed: int = 0) -> None:
        self._machine = machine
        self._trace = trace
        self._autoscaler = Autoscaler(rules)
        self._samples = Samples()
        self._random = np.random.default_rng(seed)
        self._interval = scrape_interval()
        self._replicas = [Replica(number, 0.0) for number in range(trace.start)]
        self._started = trace.start
        self._cpu: dict[int, float] = {}
        self._usage = Usage((), 0)

    def run(self) -> Report:
        """The whole trace."""
        report, steps = Report(), []
        for index in range(1, round(self._trace.seconds / STEP) + 1):
            at = index * STEP
            steps.append(self._step(at))
            self._scrape(at, index)
            if _is_due(index, CPU_SECONDS):
                self._measure_cpu(at)
            if _is_due(index, SYNC_SECONDS):
                self._scale(at)
            if _is_due(index, RECORD_SECONDS):
                report.rows.append(self._row(at, steps))
                steps = []
        return report

    def _ready(self, at: float) -> list[Replica]:
        return [replica for replica in self._replicas if replica.ready_at <= at]

    def _step(self, at: float) -> Step:
        ready = self._ready(at)
        requests = self._trace.load(at) * self._machine.tokens_per_second / TEXT_TOKENS
        arrivals = self._random.poisson(requests * STEP / len(ready), len(ready)).astype(float)
        return advance(self._machine, ready, arrivals)

    def _scrape(self, at: float, index: int) -> None:
        """Each replica at a moment of its own, as Prometheus spreads its targets."""
        period = round(self._interval / STEP)
        for replica in self._ready(at):
            if index % period == replica.number * 37 % period:
                self._samples.add(replica.number, at, replica.metrics(self._machine))

    def _measure_cpu(self, at: float) -> None:
        known = [replica for replica in self._ready(at) if replica.number in self._cpu]
        used = [replica.cpu - self._cpu[replica.number] for replica in known]
        shares = tuple(seconds / CPU_SECONDS / self._machine.cpu_request for seconds in used)
        self._usage = Usage(shares, len(self._replicas) - len(known))
        self._cpu = {replica.number: replica.cpu for replica in self._ready(at)}

    def _scale(self, at: float) -> None:
        current = len(self._replicas)
        wanted = self._autoscaler.sync(at, current, self._usage, lambda query: self._samples.value(query, at))
        for _ in range(wanted - current):
            self._replicas.append(Replica(self._started, at + self._machine.start_seconds))
            self._started += 1
        del self._replicas[wanted:]  # the youngest go first; what they hold they finish while they drain

    def _row(self, at: float, steps: Sequence[Step]) -> Row:
        waits = np.concatenate([step.waits for step in steps])
        taken = np.concatenate([step.taken for step in steps])
        order = np.argsort(waits)
        below = np.cumsum(taken[order])
        p99 = float(waits[order][np.searchsorted(below, 0.99 * below[-1])])
        return Row(
            at,
            self._trace.load(at),
            len(self._ready(at)),
            len(self._replicas),
            sum(replica.queue for replica in self._replicas),
            p99,
            sum(step.arrived for step in steps),
            sum(step.refused for step in steps),
        )


def _is_due(index: int, seconds: float) -> bool:
    return index % round(seconds / STEP) == 0
