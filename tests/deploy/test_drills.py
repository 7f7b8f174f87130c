"""Every alert is brought about: Prometheus sees the trouble, and the alert fires.

Alerts fire at once here; how long each waits is `promtool`'s to hold (`alerts_test.yaml`). The processes are real.
There is no cluster, so a server writes the series of kube-state-metrics.
"""

import contextlib
import os
import re
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.lib.client import Address
from benchmarks.lib.server import free_port
from deploy.observability.scrape import Prometheus
from model.artifact import read_manifest, write_manifest
from service.observability.metric_names import READY
from tests.deploy.drills import (
    PATIENCE,
    asking,
    firing,
    kube_state_metrics,
    memory_group,
    serve,
    wait_for,
    wait_for_a_start,
    watched,
)
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

QUEUE_OF_16_TEXTS = (
    "--max-request-tokens=48",
    "--max-queue-tokens=48",
    "--max-batch-tokens=3",
    "--max-queue-delay=1e6",
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_fake_artifact(tmp_path / "model")


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
    port, seen = free_port(), 0.0
    with watched(tmp_path, Address("127.0.0.1", port)) as prometheus:
        for _ in range(4):
            with serve(model, port=port):
                seen = wait_for_a_start(prometheus, since=seen)
        wait_for(prometheus, "PolyheadRestarts")  # and it is down, as it mostly is


def test_processes_that_keep_dying(model: Path, tmp_path: Path) -> None:
    flags = "--processes", "2", "--admin-port", "0"
    with serve(model, *flags) as server, watched(tmp_path, admin(server)) as prometheus:
        killed: set[int] = set()

        def kill_one() -> None:
            started = [one["pid"] for one in server.records() if re.fullmatch(r"process 0 started", one["message"])]
            if started[-1] not in killed:
                os.kill(started[-1], signal.SIGKILL)
                killed.add(started[-1])
            time.sleep(0.5)

        wait_for(prometheus, "PolyheadProcessRestarts", do=kill_one)
        assert "PolyheadRestarts" not in firing(prometheus)


def admin(server: ServerProcess) -> Address:
    found = re.search(r"127\.0\.0\.1:(\d+)", server.wait_for_line("metrics and documentation are on"))
    assert found
    return Address("127.0.0.1", int(found[1]))


def test_memory_near_its_limit(model: Path, tmp_path: Path) -> None:
    with serve(model) as server:
        page = server.request("GET", "/metrics")[2].decode()
    found = re.search(r"^process_resident_memory_bytes (\S+)$", page, re.MULTILINE)
    assert found
    with (
        memory_group(int(float(found[1]) / 0.95)) as group,
        serve(model, group=group) as server,
        watched(tmp_path, server) as prometheus,
    ):
        wait_for(prometheus, "PolyheadMemory")


def test_what_the_cluster_says(tmp_path: Path) -> None:
    unavailable = 'kube_deployment_status_replicas_unavailable{namespace="a",deployment="polyhead"}'
    scaler = '{namespace="a",horizontalpodautoscaler="keda-hpa-polyhead"}'
    replicas = f"kube_horizontalpodautoscaler_status_current_replicas{scaler}"
    pod = '{namespace="a",pod="polyhead-5d8f-x2x",uid="7",container="polyhead"}'
    restarts = f"kube_pod_container_status_restarts_total{pod}"
    figures = {unavailable: 0, replicas: 4, f"kube_horizontalpodautoscaler_spec_max_replicas{scaler}": 10, restarts: 0}
    with kube_state_metrics(figures) as address, watched(tmp_path, cluster=[address]) as prometheus:
        while not prometheus.query(unavailable, time.time()):
            time.sleep(0.2)
        assert firing(prometheus) <= {"PolyheadAbsent"}
        figures |= {unavailable: 1, replicas: 10}
        wait_for(prometheus, "PolyheadUnavailable", "PolyheadAutoscalerAtMaximum")

        def restart() -> None:
            figures[restarts] += 1
            time.sleep(1.1)

        wait_for(prometheus, "PolyheadRestarts", do=restart)
