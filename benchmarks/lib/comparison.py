"""Several ways to encode the same texts, measured alternately and laid side by side.

It knows a way as a function that measures once and returns a `Sample`.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.engines import Engine, Pass
from benchmarks.lib.load import DROPPED, Connection, Request, post, run_closed_loop
from benchmarks.lib.report import Spread, Table, in_turns, percentiles
from benchmarks.lib.server import Server
from benchmarks.lib.texts import Plan, TokenIds, make_batches

ENCODE = "/encode"
CLOSE_ENOUGH = 0.98  # cosine; int8 against fp32 is above 0.99, another text far below


def encode_requests(
    texts: Sequence[str], rows: Sequence[TokenIds], per_request: int, options: Mapping[str, Any] | None = None
) -> list[Request]:
    """Requests of `per_request` texts each, every text used once; what is left over is dropped.

    Without the model's default prompt: its tokens would count, and the engine and the peers encode the texts alone.

    Args:
        texts: what to send.
        rows: their token ids, for counting.
        per_request: 1 sends a text, more a list.
        options: further fields of the body.

    Raises:
        CannotMeasure: there are too few texts for one request.
    """

    def body(part: list[str]) -> dict[str, Any]:
        return {"inputs": part[0] if per_request == 1 else part, "prompt": "", **(options or {})}

    return requests_of(ENCODE, texts, rows, per_request, body)


def requests_of(
    path: str,
    texts: Sequence[str],
    rows: Sequence[TokenIds],
    per_request: int,
    body: Callable[[list[str]], Mapping[str, Any]],
) -> list[Request]:
    """Requests to any route; `body` makes one of the texts in it. Else, and what it raises, as `encode_requests`."""
    if len(texts) < per_request:
        raise CannotMeasure(f"{len(texts)} texts make no request of {per_request}: raise --texts")
    parts = [slice(start, start + per_request) for start in range(0, len(texts) - per_request + 1, per_request)]
    return [post(path, body(list(texts[part])), texts=per_request, tokens=sum(map(len, rows[part]))) for part in parts]


def fetch(server: Server, request: Request) -> Any:
    """The JSON of one answer; raises as `fetch_body`."""
    return json.loads(fetch_body(server, request))


def fetch_body(server: Server, request: Request) -> bytes:
    """The body of one answer, whatever its form.

    Raises:
        CannotMeasure: the status is not 200.
    """

    async def exchange() -> bytes:
        connection = Connection(server.address, keep_body=True)
        response = await connection.send(request.data)
        connection.close()
        if response.status == DROPPED:
            raise CannotMeasure(f"no answer from {server.address.host}:{server.address.port}")
        if response.status != 200:
            raise CannotMeasure(f"status {response.status}: {response.body[:500]!r}")
        return response.body

    return asyncio.run(exchange())


def check_vectors(got: ArrayLike, expected: NDArray[np.float32]) -> None:
    """Compares directions with the engine's own vectors, before anything is timed.

    Raises:
        CannotMeasure: another number of vectors, another size, or another direction.
    """
    found = np.asarray(got, dtype=np.float32)
    if found.shape != expected.shape:
        raise CannotMeasure(f"vectors of shape {found.shape}, expected {expected.shape}")
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    cosine = float(((found * expected).sum(axis=1) / norms).min())
    if not cosine >= CLOSE_ENOUGH:
        raise CannotMeasure(f"a vector has cosine {cosine:.4f} to the engine's, expected at least {CLOSE_ENOUGH}")


MEDIANS = ("tokens_per_s", "texts_per_s", "requests_per_s", "server_cores", "client_cores", "cpu_us_a_token")
WARMUP = 0.3  # seconds before each closed loop counts; a whole round of warm-up comes before the first that does


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one way.

    Attributes:
        tokens_per_s: real tokens, special ones included.
        texts_per_s: texts.
        latencies: seconds, of each request, or of each run if there are no requests.
        requests_per_s: HTTP requests answered with 200, or None without HTTP.
        server_cores: cores that the server kept busy, or None without HTTP.
        client_cores: cores that the load generator kept busy, likewise.
        failed: answers that were neither 200 nor 429.
        cpu_us_a_token: processor time of an engine without HTTP, or None where unknown; others on the machine change it
            less than a rate.
    """

    tokens_per_s: float
    texts_per_s: float
    latencies: Sequence[float] = ()
    requests_per_s: float | None = None
    server_cores: float | None = None
    client_cores: float | None = None
    failed: int = 0
    cpu_us_a_token: float | None = None


Way = Callable[[], Sample]
Words = tuple[str, ...]  # that the names of a group of ways all hold, the first one at their beginning


def over_passes(run: Callable[[], Pass]) -> Way:
    """A way that is one pass through an engine."""

    def measure() -> Sample:
        one = run()
        cpu_us = None if one.cpu_seconds is None else 1e6 * one.cpu_seconds / one.tokens
        return Sample(one.tokens_per_s, one.texts_per_s, one.latencies, cpu_us_a_token=cpu_us)

    return measure


def engine_ways(engine: Engine, rows: Sequence[TokenIds], plans: Mapping[str, Plan]) -> dict[str, Way]:
    """The engine alone on all the texts: every plan under every layout."""
    return {
        f"{engine.name}, {name}, {layout}": over_passes(engine.runner(make_batches(rows, plan), layout))
        for name, plan in plans.items()
        for layout in engine.backends
    }


def over_http(server: Server, requests: Sequence[Request], connections: int, seconds: float) -> Way:
    """A way that is a closed loop of requests to a server."""

    def measure() -> Sample:
        cores = server.count_cores()
        tally = run_closed_loop(server.address, requests, connections=connections, seconds=seconds, warmup=WARMUP)
        server_cores = cores()
        return Sample(
            tokens_per_s=tally.tokens / seconds,
            texts_per_s=tally.texts / seconds,
            latencies=tally.latencies,
            requests_per_s=tally.requests / seconds,
            server_cores=server_cores,
            client_cores=tally.client_cpu / seconds,
            failed=tally.failed,
        )

    return measure


def http_ways(
    server: Server, make: Callable[[int], Sequence[Request]], arguments: argparse.Namespace
) -> dict[str, Way]:
    """A server, with each of the wanted numbers of texts a request; `make` turns such a number into requests."""
    return {
        http_name(count): over_http(server, make(count), arguments.connections, arguments.seconds)
        for count in arguments.texts_per_request
    }


def paused_ways(
    name: str, server: Server, make: Callable[[int], Sequence[Request]], arguments: argparse.Namespace
) -> dict[str, Way]:
    """A server's ways under its name; it is paused whenever none of them is being measured."""
    ways = http_ways(server, make, arguments)
    server.pause()
    return {f"{name}, {way}": partial(resumed, server, measure) for way, measure in ways.items()}


def resumed(server: Server, way: Way) -> Sample:
    """Measures a way of a paused server."""
    server.resume()
    try:
        return way()
    finally:
        server.pause()


def http_name(count: int) -> str:
    """Name of the way with this many texts a request."""
    return f"HTTP, {count} {'text' if count == 1 else 'texts'} a request"


def compare(title: str, ways: Mapping[str, Way], rounds: int) -> Table:
    """Measures every way once a round and summarises each by its medians.

    Raises:
        CannotMeasure: a server answered with an error: such a rate means nothing.
    """
    table = Table("rates", title)
    for way, samples in in_turns(ways, rounds).items():
        require_answers(way, samples)
        table.add(
            way=way,
            **{column: _median(samples, column) for column in MEDIANS},
            spread=str(Spread.of([sample.tokens_per_s for sample in samples])),
            **percentiles([latency for sample in samples for latency in sample.latencies]),
        )
    return table


def require_answers(way: str, samples: Sequence[Sample]) -> None:
    """Raises `CannotMeasure` if requests failed, or if none was answered: such a rate means nothing."""
    if failed := sum(sample.failed for sample in samples):
        raise CannotMeasure(f"{way}: {failed} requests failed; see the server's log")
    if not all(sample.texts_per_s for sample in samples):
        raise CannotMeasure(f"{way}: no request was answered within the time: raise --seconds")


def best_of(table: Table, words: Words) -> tuple[str, float] | None:
    """The fastest way of a group, and its median tokens/s; None if there is no such way."""
    rows = [row for row in table.rows if row["way"].startswith(words[0]) and all(word in row["way"] for word in words)]
    best = max(rows, key=lambda row: float(row["tokens_per_s"]), default=None)
    return None if best is None else (best["way"], float(best["tokens_per_s"]))


def ratios(name: str, title: str, pairs: Iterable[tuple[Words, Words]], table: Table) -> Table:
    """The best of one group of ways over the best of another, for each pair of groups that both exist."""
    found = Table(name, title)
    for words, others in pairs:
        ours, theirs = best_of(table, words), best_of(table, others)
        if ours and theirs:
            found.add(of=ours[0], over=theirs[0], ratio=ours[1] / theirs[1])
    return found


def _median(samples: Sequence[Sample], column: str) -> float | None:
    values = [value for sample in samples if (value := getattr(sample, column)) is not None]
    return float(np.median(values)) if values else None
