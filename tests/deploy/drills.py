"""Trouble made on purpose, and a Prometheus that watches it: what the drills of the alerts are made of."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.lib.client import Address
from deploy.observability.process_rows import STARTED
from deploy.observability.scrape import NoPrometheus, Prometheus, scraping
from service.machine.cgroup import cgroup_directories
from tests.service.process import ServerProcess

PATIENCE = 120.0  # seconds
LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


def serve(
    folder: Path, *flags: str, port: int = 0, run_seconds: float = 0.0, group: Path | None = None
) -> ServerProcess:
    """A service with one worker, whose every run takes so long, in a control group or none."""
    command = ("--model", str(folder), "--workers", "1", *flags, *(("--port", str(port)) if port else ()))
    environment = {"FAKE_RUN_SECONDS": str(run_seconds), "FAKE_CONTROL_GROUP": str(group or "")}
    return ServerProcess("tests.service.fake_server", *command, environment=environment).wait_until_ready()


@contextlib.contextmanager
def watched(folder: Path, *servers: ServerProcess | Address, cluster: Sequence[Address] = ()) -> Iterator[Prometheus]:
    addresses = [one if isinstance(one, Address) else Address(*one.address) for one in servers]
    try:
        with scraping(addresses, folder, patient=False, cluster=cluster) as prometheus:
            yield prometheus
    except NoPrometheus as missing:
        pytest.skip(str(missing))


@contextlib.contextmanager
def asking(server: ServerProcess, clients: int) -> Iterator[None]:
    """Clients that ask again as soon as they are answered, whatever the answer."""
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                server.request("POST", "/encode", {"inputs": "cat"})
            over.wait(0.05)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def firing(prometheus: Prometheus) -> set[str]:
    return {rule["name"] for rule in prometheus.rules() if rule.get("state") == "firing"}


def wait_for(prometheus: Prometheus, *alerts: str, do: Callable[[], object] = lambda: time.sleep(0.2)) -> None:
    """Goes on with the trouble until all of them fire."""
    missing, end = set(alerts), time.monotonic() + PATIENCE
    while missing := missing - firing(prometheus):
        assert time.monotonic() < end, f"{missing} did not fire"
        do()


def wait_for_a_start(prometheus: Prometheus, since: float) -> float:
    """When the process started that Prometheus has seen last, once it is a later one."""
    end = time.monotonic() + PATIENCE
    while True:
        found = prometheus.query(STARTED, time.time())
        if found and found[0].values[-1] > since:
            return found[0].values[-1]
        assert time.monotonic() < end, "the start was not seen"
        time.sleep(0.2)


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A control group whose processes may have so many bytes of memory together."""
    found = cgroup_directories(Path("/"), "memory")
    mounts = [
        (directory, name) for version, directory in found if (directory / (name := LIMIT_FILES[version])).exists()
    ]
    if not mounts:
        pytest.skip("there is no control group with a limit of memory")
    group = mounts[-1][0] / f"polyhead-drill-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        (group / mounts[-1][1]).write_text(str(limit))
        yield group
    finally:
        group.rmdir()


@contextlib.contextmanager
def kube_state_metrics(figures: Mapping[str, float]) -> Iterator[Address]:
    """A server in place of kube-state-metrics: these series, with the values that they have when it is asked."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = "".join(f"{series} {value}\n" for series, value in figures.items()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - as the library calls it

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_port)
        finally:
            server.shutdown()
            thread.join()
