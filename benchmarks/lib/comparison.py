"""Several ways to encode the same texts, measured in turns and laid side by side."""

import json
import os
import socket
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.load import Address, Request, post, run_closed_loop
from benchmarks.lib.report import Spread, Table, in_turns, percentiles
from benchmarks.lib.server import Server
from benchmarks.lib.texts import TokenIds, make_batch, standard_plans
from benchmarks.peers.workers import Pass, layouts_of, pull
from export.similarity import row_cosines
from model.artifact import Artifact
from service.inference.backend import Backend, Batch, Float32Array
from service.inference.openvino_backend import load_backend

ENCODE = "/encode"
CLOSE_ENOUGH = 0.98  # cosine; int8 against fp32 is above 0.99, another text far below
MEDIANS = ("tokens_per_s", "texts_per_s", "requests_per_s", "server_cores", "client_cores", "cpu_us_a_token")
WARMUP = 0.3  # seconds before each closed loop counts; a whole round of warm-up comes before the first that does


class Sample(NamedTuple):
    """One measurement of one way; requests and cores of HTTP, processor time of an engine without it."""

    tokens_per_s: float  # real tokens, special ones included
    texts_per_s: float
    latencies: Sequence[float] = ()  # seconds, of each request, or of each run if there are no requests
    requests_per_s: float | None = None  # answered with 200
    server_cores: float | None = None  # that the server kept busy
    client_cores: float | None = None  # that the load generator kept busy
    failed: int = 0  # answers that were neither 200 nor 429
    cpu_us_a_token: float | None = None  # others on the machine change it less than a rate

    @classmethod
    def of(cls, found: Pass, tokens: int, texts: int) -> "Sample":
        """Of an engine without HTTP."""
        cpu_us = 1e6 * found.cpu_seconds / tokens
        return cls(tokens / found.seconds, texts / found.seconds, found.latencies, cpu_us_a_token=cpu_us)


Way = Callable[[], Sample]
Layout = tuple[int, int]
Words = tuple[str, ...]  # that the names of a group of ways all hold, the first one at their beginning


def in_parts(texts: Sequence[str], rows: Sequence[TokenIds], size: int) -> Iterator[tuple[list[str], int]]:
    """Parts of `size` texts, and the tokens of each; what is left over is dropped. `CannotMeasure` without any part."""
    if len(texts) < size:
        raise CannotMeasure(f"{len(texts)} texts make no request of {size}: raise --texts")
    for start in range(0, len(texts) - size + 1, size):
        part = slice(start, start + size)
        yield list(texts[part]), sum(map(len, rows[part]))


def encode_requests(
    texts: Sequence[str], rows: Sequence[TokenIds], per_request: int, options: Mapping[str, Any] | None = None
) -> list[Request]:
    """Requests of `per_request` texts each, 1 being a text and no list; `options` are further fields of the body.

    Without the model's default prompt: its tokens would count, and the engine and the peers encode the texts alone.
    """
    requests = []
    for part, tokens in in_parts(texts, rows, per_request):
        inputs = part[0] if per_request == 1 else part
        body = {"inputs": inputs, "prompt": "", **(options or {})}
        requests.append(post(ENCODE, body, texts=per_request, tokens=tokens))
    return requests


def fetch(address: Address, request: Request) -> Any:
    """The JSON of one answer."""
    return json.loads(fetch_body(address, request))


def fetch_body(address: Address, request: Request) -> bytes:
    """The body of one answer, whatever its form; `CannotMeasure` without an answer, or with a status other than 200."""
    try:
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(request.data)
            response = HTTPResponse(connection)
            response.begin()
            body = response.read()
    except (OSError, HTTPException) as error:
        raise CannotMeasure(f"no answer from {address.host}:{address.port}: {error}") from error
    if response.status != 200:
        raise CannotMeasure(f"status {response.status}: {body[:500]!r}")
    return body


def check_vectors(got: ArrayLike, expected: NDArray[np.float32]) -> None:
    """Raises `CannotMeasure` if vectors have another number, size or direction than the engine's own."""
    found = np.asarray(got, dtype=np.float32)
    if found.shape != expected.shape:
        raise CannotMeasure(f"vectors of shape {found.shape}, expected {expected.shape}")
    cosine = float(row_cosines(found, expected).min())
    if not cosine >= CLOSE_ENOUGH:
        raise CannotMeasure(f"a vector has cosine {cosine:.4f} to the engine's, expected at least {CLOSE_ENOUGH}")


def run_pass(backend: Backend, batches: Sequence[Batch], workers: int) -> Sample:
    """Runs every batch once, in order, on `workers` threads that take the next one when they are free."""
    tokens, texts = sum(int(batch.lengths.sum()) for batch in batches), sum(len(batch.lengths) for batch in batches)
    return Sample.of(pull(backend.run, batches, workers), tokens, texts)


class Engine(NamedTuple):
    """An artifact, opened once a layout: worker threads, and intra-op threads of each. Its name: folder, precision."""

    name: str
    artifact: Artifact
    backends: Mapping[Layout, Backend]

    @classmethod
    def open(cls, directory: Path, *, provider: str = "cpu", layouts: Sequence[Layout] | None = None) -> "Engine":
        """Verifies an artifact and loads it once a layout; `ProviderUnavailable` if the provider cannot be used.

        If none is given, a worker a core and one on all cores; on a GPU one, and two of which one prepares.
        """
        artifact = Artifact.open(directory)
        usual = [(1, 1), (2, 1)] if provider == "cuda" else layouts_of(len(os.sched_getaffinity(0)))
        backends = {
            (workers, threads): load_backend(artifact, workers=workers, intra_op_threads=threads, provider=provider)
            for workers, threads in layouts or usual
        }
        return cls(f"{directory} {artifact.manifest.precision}", artifact, backends)

    @property
    def precision(self) -> str:
        """The artifact's."""
        return self.artifact.manifest.precision

    def ways(self, rows: Sequence[TokenIds]) -> dict[str, Way]:
        """The engine alone on all the texts: every plan under every layout."""
        made: dict[str, Way] = {}
        for name, plan in standard_plans(rows).items():
            batches = [make_batch([rows[index] for index in run]) for run in plan]
            for (workers, threads), backend in self.backends.items():
                way = f"Polyhead {self.precision}: {name}, {workers}x{threads}"
                made[way] = partial(run_pass, backend, batches, workers)
        return made

    def pooled(self, rows: Sequence[TokenIds]) -> Float32Array:
        """Vectors `[B, D]` of a few texts, to compare others with."""
        return np.stack(list(next(iter(self.backends.values())).run(make_batch(rows)).output))


def over_http(server: Server, requests: Sequence[Request], connections: int, seconds: float) -> Way:
    """A way that is a closed loop of requests to a server, which is paused whenever it is not being measured."""
    server.pause()

    def measure() -> Sample:
        server.resume()
        cores = server.count_cores()
        tally = run_closed_loop(server.address, requests, connections=connections, seconds=seconds, warmup=WARMUP)
        server_cores = cores()
        server.pause()
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
    name: str, server: Server, make: Callable[[int], Sequence[Request]], arguments: Namespace
) -> dict[str, Way]:
    """A server, with each of the wanted numbers of texts a request; `make` turns such a number into requests."""
    return {
        f"{name}, {http_name(count)}": over_http(server, make(count), arguments.connections, arguments.seconds)
        for count in arguments.texts_per_request
    }


def http_name(count: int) -> str:
    """Name of the way with this many texts a request."""
    return f"HTTP, {count} {'text' if count == 1 else 'texts'} a request"


def compare(title: str, ways: Mapping[str, Way], rounds: int) -> Table:
    """Measures every way once a round and summarises each by its medians.

    Raises `CannotMeasure` if requests failed, or none was answered: such a rate means nothing.
    """
    table = Table("rates", title)
    for way, samples in in_turns(ways, rounds).items():
        if failed := sum(sample.failed for sample in samples):
            raise CannotMeasure(f"{way}: {failed} requests failed; see the server's log")
        if not all(sample.texts_per_s for sample in samples):
            raise CannotMeasure(f"{way}: no request was answered within the time: raise --seconds")
        columns = {column: [getattr(sample, column) for sample in samples] for column in MEDIANS}
        table.add(
            way=way,
            **{column: None if values[0] is None else median(values) for column, values in columns.items()},
            spread=str(Spread.of([sample.tokens_per_s for sample in samples])),
            **percentiles([latency for sample in samples for latency in sample.latencies]),
        )
    return table


def best_of(table: Table, words: Words) -> tuple[str, float] | None:
    """The fastest way of a group, and its median tokens/s; None if there is no such way."""
    rows = [row for row in table.rows if row["way"].startswith(words[0]) and all(word in row["way"] for word in words)]
    best = max(rows, key=lambda row: float(row["tokens_per_s"]), default=None)
    return None if best is None else (best["way"], float(best["tokens_per_s"]))


def ratios(title: str, pairs: Iterable[tuple[Words, Words]], table: Table) -> Table:
    """The best of one group of ways over the best of another, for each pair of groups that both exist."""
    found = Table("ratios", title)
    for words, others in pairs:
        ours, theirs = best_of(table, words), best_of(table, others)
        if ours and theirs:
            found.add(of=ours[0], over=theirs[0], ratio=ours[1] / theirs[1])
    return found
