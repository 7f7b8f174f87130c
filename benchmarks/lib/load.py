"""Load on an HTTP server: closed loop (as fast as it answers) and open loop (at times that do not wait for it).

Open-loop latency counts from the time a request was due, not from when it could be sent: a stalled server is charged
for everyone who would have come meanwhile (no coordinated omission). It does not know what is in a request.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import uvloop
from httptools import HttpResponseParser

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.report import percentiles

DROPPED = 0  # status of a request whose connection ended before its answer, or that waited longer than the grace


class Address(NamedTuple):
    """Where the server listens."""

    host: str
    port: int


class Request(NamedTuple):
    """A whole request as bytes, the work in it, and the status it should get."""

    data: bytes
    texts: int
    tokens: int
    expects: int = 200


class Response(NamedTuple):
    """The part of an answer that load is judged by."""

    status: int
    retry_after: str | None = None


def post(
    path: str, body: Mapping[str, Any], *, texts: int = 0, tokens: int = 0, expects: int = 200, accept: str = "*/*"
) -> Request:
    """A POST of JSON as bytes; `accept` is the media type wanted back."""
    content = json.dumps(body, ensure_ascii=False).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: benchmark\r\nContent-Type: application/json\r\nAccept: {accept}\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return Request(head.encode() + content, texts, tokens, expects)


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time; connects again by itself after the server closed it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._parser = HttpResponseParser(self)
        self._retry_after: str | None = None
        self._closed = False

    async def send(self, data: bytes) -> Response:
        """Sends one request and waits for the end of its answer; status `DROPPED` where none came, or no HTTP."""
        while self._transport is not None and self._transport.is_closing():
            await asyncio.sleep(0)  # connection_lost comes in one of the next turns
        loop = asyncio.get_running_loop()
        if self._transport is None and not self._closed:
            with suppress(OSError):
                await loop.create_connection(lambda: self, self._address.host, self._address.port)
        if self._closed or self._transport is None:
            return Response(DROPPED)
        self._answer, self._parser, self._retry_after = loop.create_future(), HttpResponseParser(self), None
        self._transport.write(data)
        return await self._answer

    def close(self) -> None:
        """Closes permanently: a request under way and every later one gets `DROPPED`."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Ends the request under way, if any."""
        self._transport = None
        self._finish(Response(DROPPED))

    def data_received(self, data: bytes) -> None:
        """Reads the answer; of what is no HTTP the transport hears, and ends the connection."""
        if self._answer is not None:
            self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keeps what an answer says about coming back."""
        if name.lower() == b"retry-after":
            self._retry_after = value.decode()

    def on_message_complete(self) -> None:
        """Ends the request."""
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.abort()
        self._finish(Response(self._parser.get_status_code(), self._retry_after))

    def _finish(self, response: Response) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(response)


GRACE = 30.0  # seconds that requests under way get to finish after the measurement


@dataclass
class Tally:
    """The answers to the requests that one window counts.

    Requests, texts and tokens are of those answered with 200; one that straddles an edge of the window counts with the
    share of its time that lies inside.
    """

    seconds: float  # length of the window
    latencies: list[float] = field(default_factory=list)  # seconds, of the answers with status 200
    statuses: Counter[int] = field(default_factory=Counter)
    requests: float = 0.0
    texts: float = 0.0
    tokens: float = 0.0
    refused: int = 0  # answers 429 and 503, those that should say when to come back
    with_retry_after: int = 0  # of these
    failed: int = 0  # answers with another status than the request expects or 429: a clean run has none
    client_cpu: float = 0.0  # CPU seconds of this process in the window

    def add(self, request: Request, response: Response, latency: float, share: float = 1.0) -> None:
        """Counts one answer, its work with the given share."""
        self.statuses[response.status] += 1
        self.failed += response.status not in (request.expects, 429)
        if response.status == 200:
            self.latencies.append(latency)
            self.requests += share
            self.texts += share * request.texts
            self.tokens += share * request.tokens
        elif response.status in (429, 503):
            self.refused += 1
            self.with_retry_after += response.retry_after is not None

    def rates(self) -> dict[str, float]:
        """Successful requests, texts and tokens a second, and latency percentiles."""
        return {
            "requests_per_s": self.requests / self.seconds,
            "texts_per_s": self.texts / self.seconds,
            "tokens_per_s": self.tokens / self.seconds,
            **percentiles(self.latencies),
        }


def sum_up(tallies: Sequence[Tally]) -> dict[str, float]:
    """Requests by what became of them, and latencies; one is lost unless it is answered, or refused with 429."""
    statuses = sum((tally.statuses for tally in tallies), Counter[int]())
    answered, refused = statuses[200], statuses[429]
    counts = {"sent": statuses.total(), "answered": answered, "refused": refused}
    latencies = percentiles([latency for tally in tallies for latency in tally.latencies])
    return {**counts, "lost": statuses.total() - answered - refused, **latencies}


@dataclass
class OpenRun:
    """An open loop's two views of one window."""

    due: Tally  # requests due within the window, whenever they were answered: latency and the shares of statuses
    done: Tally  # answers that came within the window, whenever they were due: rates
    connections: int = 0  # most requests that were under way at once


def poisson_schedule(rate: float, seconds: float, seed: int = 0) -> list[float]:
    """Arrival times in seconds from the start, at `rate` a second on average, independent of each other."""
    random = np.random.default_rng(seed)
    return sorted(random.uniform(0, seconds, random.poisson(rate * seconds)).tolist())


def run_closed_loop(
    address: Address, requests: Sequence[Request], *, connections: int, seconds: float, warmup: float = 1.0
) -> Tally:
    """`closed_loop` in an event loop of its own."""
    return uvloop.run(closed_loop(address, requests, connections=connections, seconds=seconds, warmup=warmup))


async def closed_loop(
    address: Address, requests: Sequence[Request], *, connections: int, seconds: float, warmup: float
) -> Tally:
    """Each connection sends the next request when it has the answer to its last; the window begins after the warm-up.

    The load goes on until every request that was under way at the end of the window is answered, so that those at the
    edges take as long as all others; each counts with the share of its time inside the window. Rates are then exact
    (requests under way over mean latency, Little's law) even where a window holds only a few slow requests.
    """
    tally, source = Tally(seconds), itertools.cycle(requests)
    opened = [Connection(address) for _ in range(connections)]
    through: set[Connection] = set()  # connections whose request at the end of the window was answered
    start = time.perf_counter() + warmup
    end = start + seconds

    async def drive(connection: Connection) -> None:
        while len(through) < connections:
            sent, request = time.perf_counter(), next(source)
            response = await connection.send(request.data)
            now = time.perf_counter()
            if (inside := min(now, end) - max(sent, start)) > 0:
                tally.add(request, response, now - sent, inside / (now - sent))
            if now >= end:
                through.add(connection)
            if response.status == DROPPED:
                await asyncio.sleep(0.01)  # no busy loop against a server that is gone

    async with asyncio.TaskGroup() as group:
        group.create_task(_meter(tally, warmup))
        drivers = [group.create_task(drive(connection)) for connection in opened]
        await _give_up_after(warmup + seconds + GRACE, drivers, opened)
    return tally


def run_open_loop(
    address: Address, requests: Sequence[Request], schedule: Sequence[float], *, connections: int, warmup: float = 0.0
) -> OpenRun:
    """`open_loop` in an event loop of its own."""
    return uvloop.run(open_loop(address, requests, schedule, connections=connections, warmup=warmup))


async def open_loop(
    address: Address, requests: Sequence[Request], schedule: Sequence[float], *, connections: int, warmup: float
) -> OpenRun:
    """Sends requests when the schedule, ascending seconds from the start, says that they are due.

    The window begins after the warm-up and ends with the schedule; `CannotMeasure` if nothing is due in it.
    `connections` is the most requests under way; one more waits, and its latency counts that.
    """
    if not schedule or schedule[-1] <= warmup:
        raise CannotMeasure("no request is due after the warm-up: raise the rate or the seconds")
    window = schedule[-1] - warmup
    run = OpenRun(Tally(window), Tally(window))
    slots, opened = asyncio.Semaphore(connections), list[Connection]()
    idle: list[Connection] = []
    start = time.perf_counter()

    async def answer(scheduled: float, request: Request) -> None:
        async with slots:
            if not idle:
                opened.append(Connection(address))
                idle.append(opened[-1])
            connection = idle.pop()
            response = await connection.send(request.data)
            idle.append(connection)
        now = time.perf_counter() - start
        if scheduled >= warmup:
            run.due.add(request, response, now - scheduled)
        if warmup <= now < schedule[-1]:
            run.done.add(request, response, now - scheduled)

    async with asyncio.TaskGroup() as group:
        group.create_task(_meter(run.done, warmup))
        sent = []
        for scheduled, request in zip(schedule, itertools.cycle(requests), strict=False):
            if (wait := start + scheduled - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            sent.append(group.create_task(answer(scheduled, request)))
        await _give_up_after(GRACE, sent, opened)
    run.connections = len(opened)
    return run


async def _meter(tally: Tally, warmup: float) -> None:
    """Notes the CPU seconds that this process used within the window."""
    await asyncio.sleep(warmup)
    used = time.process_time()
    await asyncio.sleep(tally.seconds)
    tally.client_cpu = time.process_time() - used


async def _give_up_after(seconds: float, tasks: list[asyncio.Task[None]], opened: list[Connection]) -> None:
    """Waits for the tasks; past the limit their requests end as `DROPPED`, and so does every later one."""
    await asyncio.wait(tasks, timeout=seconds)
    for connection in opened:
        connection.close()
