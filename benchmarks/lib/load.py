"""Load on an HTTP server: closed loop (as fast as it answers) and open loop (at times that do not wait for it).

Open-loop latency counts from the time a request was due, not from when it could be sent: a stalled server is charged
for everyone who would have come meanwhile (no coordinated omission). It does not know what is in a request.
"""

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import uvloop

from benchmarks.lib.client import DROPPED, Address, Connection, Request, Response
from benchmarks.lib.timing import percentiles

GRACE = 30.0  # seconds that requests under way get to finish after the measurement


@dataclass
class Tally:
    """What came back, of the requests that one window counts.

    Attributes:
        seconds: length of the window.
        latencies: seconds, of the answers with status 200.
        statuses: answers by status; `DROPPED` where the connection ended first, or nothing came within the grace.
        requests: requests answered with 200; one that straddles an edge of the window counts with the share of its
            time that lies inside.
        texts: their texts, counted the same way.
        tokens: their tokens, likewise.
        refused: answers 429 and 503, those that should say when to come back.
        with_retry_after: how many of these had a Retry-After.
        failed: answers with another status than the request expects or 429: a clean run has none.
        client_cpu: CPU seconds of this process in the window.
    """

    seconds: float
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    requests: float = 0.0
    texts: float = 0.0
    tokens: float = 0.0
    refused: int = 0
    with_retry_after: int = 0
    failed: int = 0
    client_cpu: float = 0.0

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


@dataclass
class OpenRun:
    """An open loop's two views of one window.

    Attributes:
        due: requests that were due within the window, whenever they were answered: latency and the shares of statuses.
        done: answers that came within the window, whenever they were due: rates.
        connections: most requests that were under way at once.
    """

    due: Tally
    done: Tally
    connections: int = 0


def poisson_schedule(rate: float, seconds: float, seed: int = 0) -> list[float]:
    """Arrival times in seconds from the start, at `rate` a second on average, independent of each other."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(1 / rate, size=int(rate * seconds + 10 * (rate * seconds) ** 0.5) + 10)
    arrivals = np.cumsum(gaps)
    return [float(arrival) for arrival in arrivals[arrivals < seconds]]


def run_closed_loop(
    address: Address, requests: Sequence[Request], *, connections: int, seconds: float, warmup: float = 1.0
) -> Tally:
    """Each connection sends its next request when it has the answer to the last.

    The load goes on until every request that was under way at the end of the window is answered, so that those at the
    edges take as long as all others; each counts with the share of its time inside the window. Rates are then exact
    (requests under way over mean latency, Little's law) even where a window holds only a few slow requests.

    Args:
        address: of the server.
        requests: sent in turn, again from the start when all were sent.
        connections: requests under way at any time.
        seconds: length of the window.
        warmup: seconds of the same load before it.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(closed_loop(address, requests, connections=connections, seconds=seconds, warmup=warmup))


async def closed_loop(
    address: Address, requests: Sequence[Request], *, connections: int, seconds: float, warmup: float
) -> Tally:
    """See `run_closed_loop`."""
    tally, source = Tally(seconds), itertools.cycle(requests)
    opened = [Connection(address) for _ in range(connections)]
    through: set[Connection] = set()  # connections whose request at the end of the window was answered
    start = time.perf_counter() + warmup
    end = start + seconds

    async def drive(connection: Connection) -> None:
        while len(through) < connections:
            sent, request = time.perf_counter(), next(source)
            response = await connection.context(request.data)
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
    """Sends requests when they are due, however the server fares.

    Args:
        address: of the server.
        requests: sent in turn, again from the start when all were sent.
        schedule: when each request is due, seconds from the start, ascending.
        connections: most requests under way; one more waits, and its latency counts that.
        warmup: where the measured window starts; it ends with the schedule.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(open_loop(address, requests, schedule, connections=connections, warmup=warmup))


async def open_loop(
    address: Address, requests: Sequence[Request], schedule: Sequence[float], *, connections: int, warmup: float
) -> OpenRun:
    """See `run_open_loop`."""
    window = schedule[-1] - warmup
    run = OpenRun(Tally(window), Tally(window))
    opened: list[Connection] = []
    idle: list[Connection] = []
    waiting: deque[tuple[float, Request]] = deque()
    drivers: set[asyncio.Task[None]] = set()
    start = time.perf_counter()

    async def drive(connection: Connection, scheduled: float, request: Request) -> None:
        while True:
            response = await connection.context(request.data)
            now = time.perf_counter() - start
            if scheduled >= warmup:
                run.due.add(request, response, now - scheduled)
            if warmup <= now < schedule[-1]:
                run.done.add(request, response, now - scheduled)
            if not waiting:
                break
            scheduled, request = waiting.popleft()
        idle.append(connection)

    def dispatch(group: asyncio.TaskGroup, scheduled: float, request: Request) -> None:
        if not idle and len(opened) == connections:
            waiting.append((scheduled, request))
            return
        if not idle:
            opened.append(Connection(address))
            idle.append(opened[-1])
        driver = group.create_task(drive(idle.pop(), scheduled, request))
        drivers.add(driver)
        driver.add_done_callback(drivers.discard)

    async with asyncio.TaskGroup() as group:
        group.create_task(_meter(run.done, warmup))
        for scheduled, request in zip(schedule, itertools.cycle(requests), strict=False):
            if (wait := start + scheduled - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            dispatch(group, scheduled, request)
        await _give_up_after(GRACE, list(drivers), opened)
    run.connections = len(opened)
    return run


async def _meter(tally: Tally, warmup: float) -> None:
    """Notes the CPU seconds that this process used within the window."""
    await asyncio.sleep(warmup)
    used = time.process_time()
    await asyncio.sleep(tally.seconds)
    tally.client_cpu = time.process_time() - used


async def _give_up_after(seconds: float, drivers: list[asyncio.Task[None]], opened: list[Connection]) -> None:
    """Waits for the drivers; past the limit their requests end as `DROPPED`, and so does every later one."""
    if drivers:
        await asyncio.wait(drivers, timeout=seconds)
    for connection in opened:
        connection.close()
