"""Several ways to encode the same texts, measured in turns and laid side by side.

It knows a way as a function that measures once and returns a `Sample`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.client import Request
from benchmarks.load import run_closed_loop
from benchmarks.passes import Pass
from benchmarks.report import Table
from benchmarks.server import Server
from benchmarks.timing import Spread, in_turns, percentiles

COLUMNS = (
    "way",
    "tokens_per_s",
    "spread",
    "texts_per_s",
    "requests_per_s",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "server_cores",
    "client_cores",
)
MEDIANS = ("tokens_per_s", "texts_per_s", "requests_per_s", "server_cores", "client_cores")
WARMUP = 0.3  # seconds before each closed loop counts; a whole round of warm-up comes before the first that does


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one way.

    Attributes:
        tokens_per_s: real tokens, special ones included.
        texts_per_s: texts.
        latencies: seconds, of each request, or of each run where there are no requests.
        requests_per_s: HTTP requests answered with 200, or None without HTTP.
        server_cores: cores that the server kept busy, or None where unknown.
        client_cores: cores that the load generator kept busy, likewise.
        failed: answers that were neither 200 nor 429.
    """

    tokens_per_s: float
    texts_per_s: float
    latencies: Sequence[float] = ()
    requests_per_s: float | None = None
    server_cores: float | None = None
    client_cores: float | None = None
    failed: int = 0


Way = Callable[[], Sample]


def over_passes(run: Callable[[], Pass]) -> Way:
    """A way that is one pass through an engine."""

    def measure() -> Sample:
        one = run()
        return Sample(one.tokens_per_s, one.texts_per_s, one.latencies)

    return measure


def over_http(server: Server, requests: Sequence[Request], connections: int, seconds: float) -> Way:
    """A way that is a closed loop of requests to a server."""

    def measure() -> Sample:
        used, began = server.cpu_seconds(), time.perf_counter()
        tally = run_closed_loop(server.address, requests, connections=connections, seconds=seconds, warmup=WARMUP)
        spent, elapsed = server.cpu_seconds(), time.perf_counter() - began
        return Sample(
            tokens_per_s=tally.tokens / seconds,
            texts_per_s=tally.texts / seconds,
            latencies=tally.latencies,
            requests_per_s=tally.requests / seconds,
            server_cores=None if used is None or spent is None else (spent - used) / elapsed,
            client_cores=tally.client_cpu / seconds,
            failed=tally.failed,
        )

    return measure


def compare(name: str, title: str, ways: Mapping[str, Way], rounds: int) -> Table:
    """Measures every way once a round and summarises each by its medians.

    Raises:
        RuntimeError: a server answered with an error: such a rate means nothing.
    """
    table = Table(name, title, COLUMNS)
    for way, samples in in_turns(ways, rounds).items():
        if failed := sum(sample.failed for sample in samples):
            raise RuntimeError(f"{way}: {failed} requests failed; see the server's log")
        table.add(
            way=way,
            spread=str(Spread.of([sample.tokens_per_s for sample in samples])),
            **{column: _median(samples, column) for column in MEDIANS},
            **percentiles([latency for sample in samples for latency in sample.latencies]),
        )
    return table


def rate_of(table: Table, way: str) -> float:
    """Median tokens/s of one way of a comparison."""
    return float(next(row["tokens_per_s"] for row in table.rows if row["way"] == way))


def _median(samples: Sequence[Sample], column: str) -> float | None:
    values = [value for sample in samples if (value := getattr(sample, column)) is not None]
    return float(np.median(values)) if values else None
