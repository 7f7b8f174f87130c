"""What do clients lose when the replicas behind nginx are replaced one by one, and when one of them dies?

Two replicas, nginx as `deploy/nginx/polyhead.conf` has it, and arrivals that wait for nobody. In the first run each
replica in turn gets SIGTERM, drains, ends and starts again; in the others one is killed, with nginx sending again what
the dead one had been given, and without. A request is lost unless it is answered, or refused with 429, which says when
to come again: a replica less is that much less to take.
"""

import argparse
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from tqdm import tqdm

from benchmarks.lib.client import Address, Request
from benchmarks.lib.command import not_negative, parser_of, positive, program, seed
from benchmarks.lib.load import OpenRun, poisson_schedule, run_open_loop
from benchmarks.lib.payloads import encode_requests
from benchmarks.lib.report import Table, emit
from benchmarks.lib.server import Server, free_port, polyhead
from benchmarks.lib.texts import fingerprint, load_texts
from benchmarks.lib.timing import percentiles
from benchmarks.lib.tokens import tokenize
from benchmarks.service.nginx import nginx
from model.artifact import Artifact

COLUMNS = ("run", "sent", "answered", "refused", "lost", "unanswered_by_it", "p50_ms", "p99_ms", "max_ms")
FEWEST_REQUESTS = 20  # a window; arrivals are drawn, and one without any could say nothing
Event = Callable[[Sequence["Replica"]], None]


class Replica:
    """A service process on a port of its own, which can be replaced."""

    def __init__(self, artifact: Path, drain_delay: float) -> None:
        self.port = free_port()
        self._artifact = artifact
        self._settings = {"POLYHEAD_WORKERS": "1", "POLYHEAD_DRAIN_DELAY": str(drain_delay)}
        self._running: AbstractContextManager[Server] | None = None
        self._server: Server | None = None

    def start(self) -> None:
        """Starts it and waits until it is ready."""
        self._running = polyhead(self._artifact, self._settings, port=self.port)
        self._server = self._running.__enter__()

    def stop(self) -> None:
        """SIGTERM, and waits for its end."""
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None

    def kill(self) -> None:
        """SIGKILL."""
        assert self._server is not None and self._server.session is not None  # noqa: S101, PT018 - it was started here
        os.killpg(self._server.session, signal.SIGKILL)


def replace_all(replicas: Sequence[Replica]) -> None:
    """A rolling restart."""
    for replica in replicas:
        replica.stop()
        replica.start()


def kill_one(replicas: Sequence[Replica]) -> None:
    """The first one dies."""
    replicas[0].kill()


@contextmanager
def started(artifact: Path, drain_delay: float) -> Iterator[list[Replica]]:
    """Two replicas, until the block ends."""
    replicas = [Replica(artifact, drain_delay) for _ in range(2)]
    with ExitStack() as stack:
        for replica in replicas:
            replica.start()
            stack.callback(replica.stop)
        yield replicas


def load_through(
    replicas: Sequence[Replica],
    requests: Sequence[Request],
    arguments: argparse.Namespace,
    event: Event,
    *,
    retry: bool,
) -> tuple[list[OpenRun], int]:
    """Offers load in windows, one before something happens to the replicas, as many as it takes, and one after.

    Returns:
        The windows, and how many requests the first replica had been given when its connections broke.
    """
    runs: list[OpenRun] = []
    over = threading.Event()

    def offer(address: Address) -> None:
        last = False
        while not last:
            last = over.is_set()
            schedule = poisson_schedule(arguments.rate, arguments.seconds, arguments.seed + len(runs))
            runs.append(run_open_loop(address, requests, schedule, connections=1024))

    with nginx([replica.port for replica in replicas], retry=retry) as proxy:
        load = threading.Thread(target=offer, args=(proxy.address,), name="load")
        load.start()
        try:
            time.sleep(1.5 * arguments.seconds)
            event(replicas)
        finally:
            over.set()
            load.join()
        return runs, proxy.unanswered(replicas[0].port)


def describe(name: str, runs: Sequence[OpenRun], unanswered: int) -> dict[str, object]:
    """A row of the table."""
    statuses = sum((run.due.statuses for run in runs), Counter[int]())
    latencies = [latency for run in runs for latency in run.due.latencies]
    figures = percentiles(latencies)
    return {
        "run": name,
        "sent": statuses.total(),
        "answered": statuses[200],
        "refused": statuses[429],
        "lost": statuses.total() - statuses[200] - statuses[429],
        "unanswered_by_it": unanswered,
        "p50_ms": figures.get("p50_ms"),
        "p99_ms": figures.get("p99_ms"),
        "max_ms": 1000 * max(latencies) if latencies else None,
    }


@program
def main() -> None:
    """Runs all, prints what was lost."""
    arguments = _parse()
    artifact = Artifact.open(arguments.model)
    texts = load_texts("short", 500, arguments.seed)
    requests = encode_requests(texts, tokenize(artifact, texts), 1)
    table = Table("replicas", f"two replicas behind nginx, {arguments.rate:g} requests/s", COLUMNS)
    runs: list[tuple[str, Event, bool]] = [
        ("rolling restart", replace_all, False),
        ("one killed", kill_one, False),
        ("one killed, nginx sends again", kill_one, True),
    ]
    for name, event, retry in tqdm(runs, desc="measuring", unit="run", leave=False, disable=None):
        with started(arguments.model, arguments.drain_delay) as replicas:
            table.add(**describe(name, *load_through(replicas, requests, arguments, event, retry=retry)))
    emit("service replicas", [table], texts=fingerprint(texts))


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="about a minute; needs nginx (Debian's package nginx-light)")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="artifact")
    parser.add_argument("--rate", type=positive, default=100.0, help="requests a second, one text each")
    parser.add_argument("--seconds", type=positive, default=5.0, help="length of one window of load")
    parser.add_argument("--drain-delay", type=not_negative, default=1.0, help="of the replicas, seconds")
    parser.add_argument("--seed", type=seed, default=0, help="of the texts and the arrivals")
    arguments = parser.parse_args()
    if arguments.rate * arguments.seconds < FEWEST_REQUESTS:
        parser.error(f"--rate x --seconds: at least {FEWEST_REQUESTS} requests a window")
    return arguments
