"""What do clients lose when the replicas behind nginx are replaced one by one, and when one of them dies?

Two replicas, nginx as `deploy/nginx/polyhead.conf` has it, and arrivals that wait for nobody. In the first run each
replica in turn gets SIGTERM, drains, ends and starts again; in the others one is killed, with nginx sending again what
the dead one had been given, and without. A request is lost unless it is answered, or refused with 429, which says when
to come again: a replica less is that much less to take.
"""

import os
import shutil
import signal
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tqdm import tqdm

from benchmarks.lib.command import CannotMeasure, not_negative, parser_of, positive, program
from benchmarks.lib.comparison import encode_requests
from benchmarks.lib.load import Address, Request, Tally, poisson_schedule, run_open_loop, sum_up
from benchmarks.lib.report import Table, emit
from benchmarks.lib.server import Server, free_port, polyhead, started
from benchmarks.lib.texts import fingerprint, load_texts, tokenize
from model.artifact import Artifact

CONFIG = Path(__file__).parents[2] / "deploy" / "nginx" / "polyhead.conf"
NEXT = "proxy_next_upstream error timeout"
RETRY = " non_idempotent"  # what a replica may have begun with is asked of the next, too
ANSWER_MISSING = "while reading response header from upstream"  # nginx's words; "while connecting" lost nothing

_WRAPPER = """
worker_processes 1;
pid nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    {config}
}}
"""


class NoNginx(CannotMeasure):
    """nginx is not installed."""


def configuration(port: int, replicas: Sequence[int], *, retry: bool, path: Path) -> str:
    """The file as it stands, on these ports; raises `ValueError` if it lacks a name that must be replaced."""
    text = path.read_text()
    swaps = {"127.0.0.1:8000": f"127.0.0.1:{port}"}
    swaps |= {f"127.0.0.1:{8001 + index}": f"127.0.0.1:{replica}" for index, replica in enumerate(replicas)}
    if retry:
        swaps[NEXT] = NEXT + RETRY
    for old, new in swaps.items():
        if old not in text:
            raise ValueError(f"{path} does not hold {old!r}")
        text = text.replace(old, new)
    return text


class Nginx(NamedTuple):
    """A running nginx: where it listens, and its errors."""

    address: Address
    log: Path

    def unanswered(self, replica: int) -> int:
        """Requests that the replica on this port had been sent when its connections broke."""
        upstream = f'upstream: "http://127.0.0.1:{replica}/'
        return sum(upstream in line and ANSWER_MISSING in line for line in self.log.read_text().splitlines())


@contextmanager
def nginx(
    replicas: Sequence[int], *, retry: bool = False, path: Path = CONFIG, ready: str = "/readyz"
) -> Iterator[Nginx]:
    """Runs nginx before these ports until the block ends.

    With `retry` a request that was sent may be sent again, to another replica. `ready` answers 200 once all are there.
    Raises `NoNginx` if it is not installed, `CannotMeasure` if it did not start.
    """
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None:
        raise NoNginx("nginx is not installed: Debian's package nginx-light brings it")
    with TemporaryDirectory() as folder:
        port = free_port()
        config, log = Path(folder) / "nginx.conf", Path(folder) / "error.log"
        config.write_text(_WRAPPER.format(config=configuration(port, replicas, retry=retry, path=path)))
        command = [program, "-p", folder, "-c", str(config), "-e", str(log), "-g", "daemon off;"]
        with started(command, port, ready, {}) as server:
            yield Nginx(server.address, log)


Event = Callable[[Sequence["Replica"]], None]


class Replica:
    """A service process on a port of its own, which can be replaced."""

    def __init__(self, artifact: Path, drain_delay: float, **settings: str) -> None:
        self.port = free_port()
        self._artifact = artifact
        self._settings = {"POLYHEAD_WORKERS": "1", "POLYHEAD_DRAIN_DELAY": str(drain_delay), **settings}
        self._running = ExitStack()
        self._server: Server

    def start(self) -> None:
        """Starts it and waits until it is ready."""
        self._server = self._running.enter_context(polyhead(self._artifact, self._settings, port=self.port))

    def stop(self) -> None:
        """SIGTERM, and waits for its end."""
        self._running.close()

    def kill(self) -> None:
        """SIGKILL."""
        os.killpg(self._server.session, signal.SIGKILL)

    def kill_child(self) -> None:
        """SIGKILL to one of its processes, which its parent replaces."""
        os.kill(self._server.processes()[-1], signal.SIGKILL)


def replace_all(replicas: Sequence[Replica]) -> None:
    """Replaces one after the other."""
    for replica in replicas:
        replica.stop()
        replica.start()


# What happens to the replicas, and whether nginx sends again.
RUNS: Mapping[str, tuple[Event, bool]] = {
    "rolling restart": (replace_all, False),
    "one killed": (lambda replicas: replicas[0].kill(), False),
    "one killed, nginx sends again": (lambda replicas: replicas[0].kill(), True),
}


def load_through(
    replicas: Sequence[Replica], requests: Sequence[Request], arguments: Namespace, event: Event, *, retry: bool
) -> tuple[list[Tally], int]:
    """Offers load in windows, one before something happens to the replicas, as many as it takes, and one after.

    Returns these, and how many requests the first replica had been given when its connections broke.
    """
    windows: list[Tally] = []
    over = threading.Event()

    def offer(address: Address) -> None:
        last = False
        while not last:
            last = over.is_set()
            schedule = poisson_schedule(arguments.rate, arguments.seconds, len(windows))
            windows.append(run_open_loop(address, requests, schedule, connections=1024).due)

    with nginx([replica.port for replica in replicas], retry=retry) as proxy, ThreadPoolExecutor(1) as pool:
        offering = pool.submit(offer, proxy.address)
        try:
            time.sleep(1.5 * arguments.seconds)
            event(replicas)
        finally:
            over.set()
        offering.result()
        return windows, proxy.unanswered(replicas[0].port)


@program
def main() -> None:
    """Runs all, prints what was lost."""
    takes = "about a minute; needs nginx (Debian's package nginx-light)"
    parser = parser_of(__doc__, "model", takes=takes)
    parser.add_argument("--rate", type=positive, default=100.0, help="requests a second, one text each")
    parser.add_argument("--seconds", type=positive, default=5.0, help="length of one window of load")
    parser.add_argument("--drain-delay", type=not_negative, default=1.0, help="of the replicas, seconds")
    arguments = parser.parse_args()
    artifact, texts = Artifact.open(arguments.model), load_texts("short", 500)
    requests = encode_requests(texts, tokenize(artifact, texts), 1)
    table = Table("replicas", f"two replicas behind nginx, {arguments.rate:g} requests/s")
    for name, (event, retry) in tqdm(RUNS.items(), desc="measuring", unit="run", leave=False, disable=None):
        replicas = [Replica(arguments.model, arguments.drain_delay) for _ in range(2)]
        with ExitStack() as stack:
            for replica in replicas:
                replica.start()
                stack.callback(replica.stop)
            windows, unanswered = load_through(replicas, requests, arguments, event, retry=retry)
        longest = max((latency for tally in windows for latency in tally.latencies), default=0.0)
        table.add(run=name, unanswered_by_it=unanswered, **sum_up(windows), max_ms=1000 * longest)
    emit("service replicas", [table], texts=fingerprint(texts))
