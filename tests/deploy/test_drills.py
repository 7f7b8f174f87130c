"""Every alert that real processes can bring about is brought about: Prometheus sees the trouble, and the alert fires.

Alerts fire at once here; how long each waits is `promtool`'s to hold (`alerts_test.yaml`). Not brought about: what
kube-state-metrics says (there is no cluster), and memory near its limit.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.lib.client import Address
from benchmarks.lib.server import free_port
from deploy.observability.scrape import NoPrometheus, Prometheus, scraping
from model.artifact import read_manifest, write_manifest
from service.observability.metric_names import READY
from tests.service.fake_engine import write_fake_artifact
from tests.service.process import ServerProcess

pytestmark = [
    pytest.mark.alone,
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("DRILLS"),
        reason="minutes of trouble, on a quiet machine: DRILLS=1 pytest tests/deploy/test_drills.py",
    ),
]

PATIENCE = 120.0  # seconds
QUEUE_OF_16_TEXTS = (
    "--max-request-tokens=48",
    "--max-queue-tokens=48",
    "--max-batch-tokens=3",
    "--max-queue-delay=1e6",
)


def serve(folder: Path, *flags: str, port: int = 0, run_seconds: float = 0.0) -> ServerProcess:
    """A service with one worker, whose every run takes so long."""
    command = ("--model", str(folder), "--workers", "1", *flags, *(("--port", str(port)) if port else ()))
    environment = {"FAKE_RUN_SECONDS": str(run_seconds)}
    return ServerProcess("tests.service.fake_server", *command, environment=environment).wait_until_ready()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_fake_artifact(tmp_path / "model")


@contextlib.contextmanager
def watched(folder: Path, *servers: ServerProcess | Address) -> Iterator[Prometheus]:
    addresses = [one if isinstance(one, Address) else Address(*one.address) for one in servers]
    try:
        with scraping(addresses, folder, patient=False) as prometheus:
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


def test_slow_runs_and_a_full_queue(model: Path, tmp_path: Path) -> None:
    with serve(model, *QUEUE_OF_16_TEXTS, run_seconds=1.1) as server, watched(tmp_path, server) as prometheus:
        wait = "PolyheadQueueAge", "PolyheadQueueSaturated", "PolyheadShedding", "PolyheadLatencyBudgetBurn"
        with asking(server, clients=20):
            wait_for(prometheus, *wait)
        assert "PolyheadErrorBudgetBurn" not in firing(prometheus)
        server.signal(signal.SIGKILL)


def test_our_own_deadline_burns_the_budget_and_a_callers_does_not(model: Path, tmp_path: Path) -> None:
    with serve(model, "--request-timeout", "0.2", run_seconds=1.0) as server, watched(tmp_path, server) as prometheus:
        for _ in range(20):
            assert server.request("POST", "/encode", {"inputs": "cat"}, x_request_timeout="0.1")[0] == 504
        prometheus_has(prometheus, 20)
        assert "PolyheadErrorBudgetBurn" not in firing(prometheus)
        with asking(server, clients=4):
            wait_for(prometheus, "PolyheadErrorBudgetBurn")
        server.signal(signal.SIGKILL)


def prometheus_has(prometheus: Prometheus, deadlines: int) -> None:
    """Waits until two evaluations have seen so many deadlines of callers."""
    seen, end = 0, time.monotonic() + PATIENCE
    while seen < 2:
        assert time.monotonic() < end
        found = prometheus.query("polyhead_caller_deadlines_total", time.time())
        seen += bool(found) and found[0].values[-1] == deadlines
        time.sleep(1.0)


def test_connections_and_an_event_loop_that_is_held_up(model: Path, tmp_path: Path) -> None:
    with serve(model, "--max-connections", "4") as server, watched(tmp_path, server) as prometheus:

        def crowd() -> None:
            with ExitStack() as held, contextlib.suppress(OSError):
                clients = [held.enter_context(server.connect()) for _ in range(8)]
                assert clients[-1].recv(12) == b"HTTP/1.1 503"

        wait_for(prometheus, "PolyheadConnections", do=crowd)

        def hold_up() -> None:
            server.signal(signal.SIGSTOP)
            time.sleep(0.8)
            server.signal(signal.SIGCONT)
            time.sleep(0.3)

        wait_for(prometheus, "PolyheadEventLoopLag", do=hold_up)


def test_one_that_drains_one_that_dies_and_then_nobody(model: Path, tmp_path: Path) -> None:
    first, second = serve(model, "--drain-delay", "1000"), serve(model)
    with first, second, watched(tmp_path, first, second) as prometheus:
        while len(prometheus.query(f"{READY} == 1", time.time())) < 2 or firing(prometheus):
            time.sleep(0.2)
        first.signal(signal.SIGTERM)
        wait_for(prometheus, "PolyheadNotReady")
        assert "PolyheadAbsent" not in firing(prometheus)
        second.signal(signal.SIGKILL)
        wait_for(prometheus, "PolyheadDown", "PolyheadAbsent")
        first.signal(signal.SIGKILL)


def test_replicas_of_two_models(model: Path, tmp_path: Path) -> None:
    other = write_fake_artifact(tmp_path / "other")
    manifest = read_manifest(other).to_dict() | {"precision": "int8"}
    write_manifest(other, type(read_manifest(other)).from_dict(manifest))
    with serve(model) as first, serve(other) as second, watched(tmp_path, first, second) as prometheus:
        wait_for(prometheus, "PolyheadModelMismatch")


def test_a_process_that_keeps_restarting(model: Path, tmp_path: Path) -> None:
    port = free_port()
    with watched(tmp_path, Address("127.0.0.1", port)) as prometheus:

        def restart() -> None:
            with serve(model, port=port):
                started = time.time()
                while not prometheus.query(f"{READY} == 1 and time() - timestamp({READY}) < 1", started):
                    started = time.time()
                    time.sleep(0.2)

        wait_for(prometheus, "PolyheadRestarts", do=restart)
