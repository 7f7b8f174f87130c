"""A simulation in discrete events: requests, replicas, Prometheus' scrapes and the autoscaler.

Requests arrive at random, in sizes from a sentence to the largest that is legal. A replica's workers take runs of at
most 512 tokens in fair turns, as the service does: the request that was served least goes next, so a large one holds up
no small one. A request that would wait too long is refused, and most clients come back. A new replica gets requests
some seconds after it is ready, and Prometheus finds it later still. What is not in it: the API server, and a balancer
that spreads connections instead of requests.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import yaml

from deploy.autoscaling.autoscaler import COMPONENTS, SYNC_SECONDS, Autoscaler, Rules, Usage
from deploy.autoscaling.samples import Samples
from service.observability import metrics as names

MINUTE = 60.0
RECORD_SECONDS = 15.0  # a row of the report
CPU_SECONDS = 15.0  # the metrics server's resolution

RUN_TOKENS = 512  # at most, in one run of the model (--max-batch-tokens)
QUEUE_DELAY = 0.5  # seconds that a request may wait (--max-queue-delay)
PATIENCE = 16  # times its own run that it may wait besides (service/batching)
LARGEST = 65_536  # tokens of a request
ENDPOINT_SECONDS = 2.0  # from ready to the first request, and from the end to the last
DISCOVERY_SECONDS = 5.0  # until Prometheus knows a new pod; then it waits for its turn to be scraped
RETRY_SHARE, RETRY_SECONDS, RETRIES = 0.7, 1.0, 3  # refused clients that come back, when at the earliest, how often
WAITED_LE = "0.2"  # the bucket of the queue's time that the manifests' rules ask for

WAITED = f'{names.STAGE_DURATION}_bucket{{stage="queue",le="{WAITED_LE}"}}'
REFUSED = f'{names.REQUESTS_REJECTED}{{reason="overloaded"}}'
WAITS = f'{names.STAGE_DURATION}_count{{stage="queue"}}'
SERIES = (names.QUEUE_TOKENS, names.WORKER_BUSY, names.WORKERS, names.BUSY_LIMIT, names.TOKENS, WAITED, WAITS, REFUSED)

# How many tokens texts have: log-normal, and a few from 1,024 to the largest, evenly on a logarithmic scale.
MEDIAN_TOKENS, SIGMA, LARGE_SHARE = 100.0, 0.8, 0.002
MEAN_TOKENS = (1 - LARGE_SHARE) * MEDIAN_TOKENS * math.exp(SIGMA**2 / 2) + LARGE_SHARE * (LARGEST - 1024) / math.log(
    LARGEST / 1024
)


def draw_tokens(source: np.random.Generator, count: int, texts: int) -> np.ndarray:
    """Tokens of `count` requests of `texts` texts each, drawn one by one."""
    shape = count, texts
    small = MEDIAN_TOKENS * np.exp(SIGMA * source.standard_normal(shape))
    large = 1024 * (LARGEST / 1024) ** source.random(shape)
    tokens = np.maximum(3, np.where(source.random(shape) < LARGE_SHARE, large, small))
    sums: np.ndarray = tokens.sum(axis=1)
    return sums.clip(max=LARGEST)


class Machine(NamedTuple):
    """What one replica does."""

    workers: int  # threads that run the model
    tokens_per_second: float  # of all of them, with many texts waiting: `polyhead tune` measures it
    run_seconds: float  # what a run costs besides its tokens
    start_seconds: float  # from a new replica to a ready one, with its image on the node
    beside_seconds: float = 0.003  # what a request takes outside the queue and its run: HTTP, tokenising, the answer
    run_tokens: int = RUN_TOKENS  # at most, in one run
    texts: int = 1  # of a request: callers of a fast card send many
    cpu_request: float = 2.5  # cores
    cpu_besides: float = 0.3  # cores that the event loop and tokenising take at full load


CPU = Machine(workers=2, tokens_per_second=11_000, run_seconds=0.0003, start_seconds=15)
"""fp32 on two cores, one text a request (deploy/README.md, Sizing). A start needs 2.5 s, the node the rest."""
GPU = Machine(1, 230_000, run_seconds=0.003, start_seconds=45, run_tokens=16_384, texts=20)
"""A card that encodes 230,000 tokens a second in full batches, and a start with CUDA: assumed, not measured."""
ASSUMED = {"autoscale-gpu": GPU}
"""Machines that nobody measured, by the name of the rules; all others run on `CPU`."""


class Trace(NamedTuple):
    """A load."""

    load: Callable[[float], float]  # by seconds, in replicas' worth of work: 1.0 keeps one replica busy all the time
    seconds: float
    start: int  # replicas at the beginning
    large_every: float = 0.0  # seconds between two requests of 63,000 tokens, on average; 0 is never


def _spike(at: float) -> float:
    """From 1.2 replicas' worth to five times that within half a minute, and back after ten minutes."""
    return float(np.interp(at, [5 * MINUTE, 5.5 * MINUTE, 15 * MINUTE, 15.5 * MINUTE], [1.2, 6.0, 6.0, 1.2]))


TRACES = {
    "steady": Trace(lambda _: 8.0, 20 * MINUTE, start=10),
    "large": Trace(lambda _: 0.1, 20 * MINUTE, start=2, large_every=120),
    # Half as much again for ten seconds of each minute and a half, as recorded traffic has it.
    "bursts": Trace(lambda at: 4.2 if at % 90 < 10 else 2.8, 15 * MINUTE, start=5),
    "spike": Trace(_spike, 30 * MINUTE, start=2),
    # A rise of twenty minutes that falls at once, again and again.
    "sawtooth": Trace(lambda at: 1.0 + 5.5 * (at % (20 * MINUTE)) / (20 * MINUTE), 60 * MINUTE, start=2),
}


Waiting = tuple[float, int, float, float, float]  # turn, order, left, came, tokens


@dataclass(slots=True)
class Replica:
    """One replica: its workers, its queue in fair turns, and what it has counted."""

    machine: Machine
    number: int  # of its own, and never another's
    ready_at: float  # seconds
    free: list[float] = field(default_factory=list)  # when each worker is free, a heap
    waiting: list[Waiting] = field(default_factory=list)
    turn: float = 0.0  # of the request that was last given one
    order: int = 0
    small: float = 0.0  # tokens waiting of which a small request has to wait for: no request counts more than a run
    metrics: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SERIES, 0.0))  # what a scrape finds

    def __post_init__(self) -> None:
        self.free = [self.ready_at] * self.machine.workers
        self.metrics[names.WORKERS] = self.metrics[names.BUSY_LIMIT] = self.machine.workers

    def offer(self, at: float, tokens: float) -> bool:
        """Takes a request in, or refuses it."""
        rate, most = self.machine.tokens_per_second, self.machine.run_tokens
        ahead = self.small if tokens <= most else sum(min(left, tokens) for _, _, left, _, _ in self.waiting)
        if ahead / rate > QUEUE_DELAY + PATIENCE * tokens / rate:
            self.metrics[REFUSED] += 1
            return False
        self.order += 1
        heapq.heappush(self.waiting, (self.turn, self.order, tokens, at, tokens))
        self.small += min(tokens, most)
        self.metrics[names.QUEUE_TOKENS] += tokens
        return True

    def work(self, until: float, taken: list[float]) -> None:
        """Runs the queue up to a moment; appends the seconds of each request that ends."""
        machine, metrics = self.machine, self.metrics
        while self.waiting and (start := max(self.free[0], self.waiting[0][3])) < until:
            run, part = 0.0, []
            while self.waiting and run < machine.run_tokens and self.waiting[0][3] <= start:
                turn, order, left, came, tokens = heapq.heappop(self.waiting)
                some = min(left, machine.run_tokens - run)
                run += some
                part.append((turn + some, order, left - some, came, tokens))
                self.turn = max(self.turn, turn)
                if left == tokens:
                    metrics[WAITS] += 1
                    metrics[WAITED] += start - came <= float(WAITED_LE)
            end = start + machine.run_seconds + run * machine.workers / machine.tokens_per_second
            heapq.heapreplace(self.free, end)
            metrics[names.WORKER_BUSY] += end - start
            metrics[names.TOKENS] += run
            metrics[names.QUEUE_TOKENS] -= run
            for one in part:
                if one[2] > 0:
                    heapq.heappush(self.waiting, one)
                else:
                    self.small -= min(one[4], machine.run_tokens)
                    taken.append(end - one[3] + machine.beside_seconds)


class Row(NamedTuple):
    """A quarter of a minute: replicas that are ready and all, requests that came, and were refused."""

    at: float
    load: float
    ready: int
    replicas: int
    arrived: int
    refused: int


@dataclass(slots=True)
class Report:
    """What a simulation saw, row by row, and the seconds of each request that was answered."""

    rows: list[Row] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def refused_share(self, start: float = 0.0, end: float = float("inf")) -> float:
        """Refused requests of all that came in these seconds."""
        rows = [row for row in self.rows if start < row.at <= end]
        return sum(row.refused for row in rows) / max(1, sum(row.arrived for row in rows))

    def quantile(self, share: float) -> float:
        """Seconds within which this share of the answered requests was answered."""
        return float(np.quantile(self.seconds, share))

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
        monitor = yaml.safe_load((COMPONENTS / "monitoring/podmonitor.yaml").read_text(encoding="utf-8"))
        self._interval = float(monitor["spec"]["podMetricsEndpoints"][0]["interval"].removesuffix("s"))
        self._replicas = [Replica(machine, number, 0.0) for number in range(trace.start)]
        self._started = trace.start
        self._retries: list[tuple[float, float, int]] = []  # when, tokens, how often it was refused
        self._cpu: dict[int, float] = {}
        self._usage = Usage((), 0)
        self._asked = self._refused = 0  # since the last row

    def run(self) -> Report:
        """The whole trace, second by second."""
        report = Report()
        for second in range(1, round(self._trace.seconds) + 1):
            self._serve(float(second - 1), report.seconds)
            self._scrape(second)
            if second % CPU_SECONDS == 0:
                self._measure_cpu(second)
            if second % SYNC_SECONDS == 0:
                self._scale(float(second))
            if second % RECORD_SECONDS == 0:
                ready, replicas = len(self._ready(second)), len(self._replicas)
                row = Row(second, self._trace.load(second), ready, replicas, self._asked, self._refused)
                report.rows.append(row)
                self._asked = self._refused = 0
        return report

    def _ready(self, at: float, lag: float = 0.0) -> list[Replica]:
        first = min(self._replicas, key=lambda replica: replica.ready_at).ready_at
        return [one for one in self._replicas if one.ready_at + (lag if one.ready_at > first else 0) <= at]

    def _serve(self, at: float, taken: list[float]) -> None:
        """One second of requests, in their order."""
        trace = self._trace
        ready = self._ready(at, ENDPOINT_SECONDS)
        texts = self._machine.texts
        count = self._random.poisson(trace.load(at) * self._machine.tokens_per_second / MEAN_TOKENS / texts)
        times = at + np.sort(self._random.random(count))
        sizes = draw_tokens(self._random, count, texts)
        requests = [(time, size, 0) for time, size in zip(times.tolist(), sizes.tolist(), strict=True)]
        if trace.large_every and self._random.random() < 1 / trace.large_every:
            requests.append((at + self._random.random(), 63_000.0, 0))
        while self._retries and self._retries[0][0] < at + 1:
            requests.append(heapq.heappop(self._retries))
        requests.sort()
        for time, tokens, refusals in requests:
            replica = ready[int(self._random.integers(len(ready)))]
            replica.work(time, taken)
            is_taken = replica.offer(time, tokens)
            self._asked, self._refused = self._asked + 1, self._refused + (not is_taken)
            if not is_taken and refusals < RETRIES and self._random.random() < RETRY_SHARE:
                back = max(time, at + 1) + RETRY_SECONDS * (1 + self._random.random())
                heapq.heappush(self._retries, (back, tokens, refusals + 1))
        for replica in ready:
            replica.work(at + 1, taken)

    def _scrape(self, second: int) -> None:
        """Each replica at a moment of its own, as Prometheus spreads its targets."""
        for replica in self._ready(second, DISCOVERY_SECONDS):
            if second % self._interval == replica.number * 7 % self._interval:
                self._samples.add(replica.number, second, replica.metrics)

    def _measure_cpu(self, at: float) -> None:
        besides = self._machine.cpu_besides / self._machine.tokens_per_second
        used = {
            one.number: one.metrics[names.WORKER_BUSY] + besides * one.metrics[names.TOKENS] for one in self._ready(at)
        }
        known = [used[number] - self._cpu[number] for number in used if number in self._cpu]
        shares = tuple(seconds / CPU_SECONDS / self._machine.cpu_request for seconds in known)
        self._usage = Usage(shares, len(self._replicas) - len(known))
        self._cpu = used

    def _scale(self, at: float) -> None:
        current = len(self._replicas)
        wanted = self._autoscaler.sync(at, current, self._usage, lambda query: self._samples.value(query, at))
        for _ in range(wanted - current):
            self._replicas.append(Replica(self._machine, self._started, at + self._machine.start_seconds))
            self._started += 1
        for replica in self._replicas[wanted:]:
            self._samples.end(replica.number)
        del self._replicas[wanted:]  # the youngest go first; what they hold they finish while they drain
