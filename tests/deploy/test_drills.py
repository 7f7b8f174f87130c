"""A real Prometheus sees what real processes do: every alert is brought about and fires, every panel shows data.

Alerts fire at once in the drills; how long each waits is `promtool`'s to hold, and what follows from
kube-state-metrics, for there is no cluster (`alerts_test.yaml`).
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.lib.load import Address, Request, post, run_closed_loop
from benchmarks.lib.server import free_port, polyhead
from benchmarks.lib.texts import load_texts
from benchmarks.service.process import refused_requests
from deploy.observability.picture import ask, read_panels
from deploy.observability.rows import STARTED
from deploy.observability.scrape import Prometheus, scraping
from model.artifact import TOKENIZER, Artifact, read_manifest, write_manifest
from service.machine import cgroup_directories
from service.observability import metrics as names
from service.observability.metrics import MEMORY_ANONYMOUS, READY
from tests.deploy.tools import or_skip
from tests.service.fake_engine import write_fake_artifact
from tests.service.process import ServerProcess, fake_server, read_sample, wait_until

pytestmark = pytest.mark.slow

QUEUE_OF_16 = ("--max-request-tokens=48", "--max-queue-tokens=48", "--max-batch-tokens=3", "--max-queue-delay=1e6")
PATIENCE = 120.0  # seconds
LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_fake_artifact(tmp_path / "model")


def test_slow_runs_and_a_full_queue(model: Path, tmp_path: Path) -> None:
    with serve(model, *QUEUE_OF_16, FAKE_RUN_SECONDS="1.1") as server, watched(tmp_path, server) as prometheus:
        with asking(server, clients=20):
            wait_for(prometheus, "PolyheadQueueAge", "PolyheadQueueSaturated", "PolyheadLatencyBudgetBurn")
            wait_for(prometheus, "PolyheadShedding", "PolyheadRefusalBudgetBurn")
        assert "PolyheadErrorBudgetBurn" not in firing(prometheus)


def test_our_own_deadline_burns_the_budget_and_a_callers_does_not(model: Path, tmp_path: Path) -> None:
    server = serve(model, "--request-timeout", "0.2", FAKE_RUN_SECONDS="1")
    with server, watched(tmp_path, server) as prometheus:
        for _ in range(20):
            assert server.request("POST", "/encode", {"inputs": "cat"}, x_request_timeout="0.1")[0] == 504
        wait_until(lambda: value_of(prometheus, "polyhead_caller_deadlines_total") == 20, PATIENCE)
        time.sleep(2.0)  # two evaluations have seen them
        assert "PolyheadErrorBudgetBurn" not in firing(prometheus)
        with asking(server, clients=4):
            wait_for(prometheus, "PolyheadErrorBudgetBurn")


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


def test_replicas_of_two_models(model: Path, tmp_path: Path) -> None:
    other = write_fake_artifact(tmp_path / "other")
    manifest = read_manifest(other)
    write_manifest(other, replace(manifest, max_sequence_length=manifest.max_sequence_length - 1))
    with serve(model) as first, serve(other) as second, watched(tmp_path, first, second) as prometheus:
        wait_for(prometheus, "PolyheadModelMismatch")


def test_one_of_two_models_that_does_not_load(model: Path, tmp_path: Path) -> None:
    broken = write_fake_artifact(tmp_path / "broken")
    (broken / TOKENIZER).unlink()
    with serve(model, "--more-models", f"broken={broken}") as server, watched(tmp_path, server) as prometheus:
        wait_for(prometheus, "PolyheadModelNotReady")
        assert not firing(prometheus) & {"PolyheadNotReady", "PolyheadAbsent"}


def test_a_process_that_keeps_restarting(model: Path, tmp_path: Path) -> None:
    port, seen = free_port(), 0.0
    with watched(tmp_path, Address("127.0.0.1", port)) as prometheus:
        for _ in range(4):
            with serve(model, "--port", str(port)):
                wait_until(lambda: value_of(prometheus, STARTED) > seen, PATIENCE)  # noqa: B023 - in this turn
                seen = value_of(prometheus, STARTED)
        wait_for(prometheus, "PolyheadRestarts")  # and it is down, as it mostly is


def test_processes_that_keep_dying(model: Path, tmp_path: Path) -> None:
    flags = "--processes", "2", "--admin-port", "0"
    with serve(model, *flags) as server, watched(tmp_path, Address(*server.admin_address)) as prometheus:
        killed: set[int] = set()

        def kill_one() -> None:
            started = [one["pid"] for one in server.records() if one["message"] == "process 0 started"]
            if started[-1] not in killed:
                os.kill(started[-1], signal.SIGKILL)
                killed.add(started[-1])
            time.sleep(0.5)

        wait_for(prometheus, "PolyheadProcessRestarts", do=kill_one)
        assert "PolyheadRestarts" not in firing(prometheus)


def test_memory_near_its_limit(model: Path, tmp_path: Path) -> None:
    with serve(model) as server:
        page = server.request("GET", "/metrics")[2].decode()
    with (
        memory_group(int(read_sample(page, MEMORY_ANONYMOUS) / 0.95)) as group,
        serve(model, FAKE_CONTROL_GROUP=str(group)) as server,
        watched(tmp_path, server) as prometheus,
    ):
        wait_for(prometheus, "PolyheadMemory")


def serve(folder: Path, *flags: str, **environment: str) -> ServerProcess:
    return fake_server(folder, *flags, **environment).wait_until_ready()


def watched(folder: Path, *servers: ServerProcess | Address) -> contextlib.AbstractContextManager[Prometheus]:
    addresses = [one if isinstance(one, Address) else Address(*one.address) for one in servers]
    return or_skip(scraping(addresses, folder, patient=False))


@contextlib.contextmanager
def asking(server: ServerProcess, clients: int) -> Iterator[None]:
    """Clients that ask again as soon as they are answered, whatever the answer."""
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                server.request("POST", "/encode", {"inputs": "cat"})
            over.wait(0.05)

    with ThreadPoolExecutor(clients) as pool:
        for _ in range(clients):
            pool.submit(ask)
        try:
            yield
        finally:
            over.set()


def firing(prometheus: Prometheus) -> set[str]:
    """All that fire, without the one that always does."""
    return {rule["name"] for rule in prometheus.rules() if rule.get("state") == "firing"} - {"PolyheadWatchdog"}


def wait_for(prometheus: Prometheus, *alerts: str, do: Callable[[], object] = lambda: time.sleep(0.2)) -> None:
    """Goes on with the trouble until all of them fire."""
    missing, end = set(alerts), time.monotonic() + PATIENCE
    while missing := missing - firing(prometheus):
        assert time.monotonic() < end, f"{missing} did not fire"
        do()


def value_of(prometheus: Prometheus, series: str) -> float:
    """What Prometheus has seen last; 0 before the first time."""
    found = prometheus.query(series, time.time())
    return found[0].values[-1] if found else 0.0


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A control group whose processes may have this many bytes of memory together."""
    found = cgroup_directories(Path("/"), "memory")
    mounts = [(folder, name) for version, folder in found if (folder / (name := LIMIT_FILES[version])).exists()]
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


def one_of_each(artifact: Artifact) -> list[Request]:
    """A short round, so that a slow machine meets every kind of request within seconds, too."""
    texts = load_texts("short", 32)
    return [
        *(post("/encode", {"inputs": text}) for text in texts[:10]),
        post("/encode", {"inputs": texts}),
        post("/encode", {"inputs": texts[:2], "output": "tokens", "attention": {"layers": "all"}}),
        post("/encode", {"inputs": "word " * 2000}),
        post("/v1/embeddings", {"input": texts[0], "model": artifact.manifest.model}),
        post("/tokenize", {"inputs": texts[0]}),
        post("/explain", {"a": texts[0], "b": texts[1]}),
        *refused_requests(artifact),
    ]


@pytest.mark.alone
def test_every_panel_shows_data(default_artifact: Path, tmp_path: Path) -> None:
    """Of a service, and of one of several processes, which has metrics of its own."""
    requests = one_of_each(Artifact.open(default_artifact))
    processes = {"POLYHEAD_PROCESSES": "2", "POLYHEAD_WORKERS": "2"}
    with (
        polyhead(default_artifact, {}) as server,
        polyhead(default_artifact, processes) as several,
        or_skip(scraping([server.address, several.address], tmp_path)) as prometheus,
    ):
        start = time.time()
        run_closed_loop(server.address, requests, connections=8, seconds=12.0, warmup=0)
        end = time.time()
        for panel in read_panels():
            for target in panel["targets"]:
                found = ask(prometheus, target, start, end, step="5s")
                assert any(series.is_finite for series in found), f"{panel['row']}, {panel['title']}: {target['expr']}"
        rules = prometheus.rules()
        assert len(rules) > 20
        assert not [rule for rule in rules if rule["health"] != "ok"]
        firing = [rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] == "firing"]
        assert firing == ["PolyheadWatchdog"]  # which always fires, so that its silence says that no alert arrives
        exemplars = prometheus.exemplars(f"{names.REQUEST_DURATION}_bucket", start, end)
        assert exemplars
        assert all(len(labels["request_id"]) == 32 for labels in exemplars)
