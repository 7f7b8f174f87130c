"""The process from start to end: addresses, probes, signals, exit codes, its log, and its background work."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from starlette.testclient import TestClient

from model.artifact import TOKENIZER, read_manifest, write_manifest
from service.listeners import StartFailure, address_of, bind, bind_unix, listening
from service.observability.stages import BatchRecord
from service.runner import Runner
from service.server import STALLED_SECONDS, Server, serve, watch_loop_lag
from service.services import Readiness
from service.settings import Settings, read_settings
from tests.service.fake_engine import load_fake_runner, write_fake_artifact
from tests.service.http.test_protocol import metric, read_answer, request_bytes
from tests.service.process import fake_server, read_sample, wait_until


def test_probes_tell_loading_from_ready_from_draining(fake_artifact: Path, tmp_path: Path) -> None:
    """By bytecode without docstrings, too."""
    loaded = tmp_path / "loaded"
    environment = {"FAKE_LOAD_UNTIL": str(loaded), "FAKE_RUN_SECONDS": "1", "PYTHONOPTIMIZE": "2"}
    flags = ("--drain-delay", "1", "--max-queue-tokens", "70000")
    with fake_server(fake_artifact, *flags, **environment) as server:
        assert server.request("GET", "/healthz")[0] == 200
        status, headers, _ = server.request("GET", "/readyz")
        assert (status, headers["retry-after"]) == (503, "1")
        assert server.request("POST", "/encode", {"inputs": "cat"})[0] == 503
        assert b"polyhead_ready 0.0" in server.request("GET", "/metrics")[2]
        loaded.touch()
        server.wait_until_ready()
        assert [server.request("GET", path)[0] for path in ("/readyz", "/openapi.json")] == [200, 200]
        wait_until(lambda: metric(server, "polyhead_event_loop_lag_seconds_count") > 1)
        assert_figures_of_the_process(server.request("GET", "/metrics")[2].decode())
        with server.connect(room=16_384) as slow:
            large = request_bytes({"inputs": ["cat " * 14] * 60, "attention": {"layers": "all"}})
            slow.sendall(large * 3)
            wait_until(lambda: metric(server, "polyhead_requests_in_flight") == 2)
            slow.sendall(large)  # bytes behind a request are not answered
            server.signal(signal.SIGTERM)
            wait_until(lambda: server.request("GET", "/readyz")[0] == 503)
            assert server.request("GET", "/healthz")[0] == 200
            status, headers, _ = server.request("POST", "/encode", {"inputs": "cat"})
            assert (status, headers["connection"]) == (200, "close")
            slow.settimeout(10)
            status, headers, body = read_answer(slow)
            assert (status, headers["connection"], len(json.loads(body)["attention"])) == (200, "close", 60)
            assert slow.recv(1) == b""
        assert server.wait() == 0


def assert_figures_of_the_process(page: str) -> None:
    """What is unknown is no number, so that no alert compares with it."""
    assert (read_sample(page, "polyhead_ready"), read_sample(page, "polyhead_queue_limit_tokens")) == (1, 70_000)
    assert 0 < read_sample(page, "polyhead_cpu_limit_cores") <= len(os.sched_getaffinity(0))
    assert read_sample(page, "polyhead_memory_anonymous_bytes") > 1e7, "the alert of memory reads it"
    assert read_sample(page, "process_resident_memory_bytes") < read_sample(page, "polyhead_memory_limit_bytes")
    assert 0 < read_sample(page, "polyhead_model_load_seconds") < 60
    assert abs(read_sample(page, "process_start_time_seconds") - time.time()) < 120


def test_signal_while_loading_ends_the_process_with_0(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, FAKE_LOAD_SECONDS="0.5") as server:
        assert server.address
        assert server.stop() == 0


def test_requests_beyond_the_shutdown_limit_are_told_so(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, "--shutdown-timeout", "0.2", FAKE_RUN_SECONDS="30").wait_until_ready() as server:
        answers: list[tuple[int, dict[str, str], bytes]] = []
        client = threading.Thread(target=lambda: answers.append(server.request("POST", "/encode", {"inputs": "cat"})))
        client.start()
        wait_until(lambda: b"polyhead_requests_in_flight 2.0" in server.request("GET", "/metrics")[2])
        assert server.stop() == 0
        client.join()
        assert answers[0][0] == 503
        assert json.loads(answers[0][2])["error"]["code"] == "not_ready"


@pytest.mark.parametrize(
    ("state", "flags", "load_seconds"), [("listening on", ["--drain-delay", "60"], "0"), ("loading", [], "30")]
)
def test_second_signal_ends_at_once(fake_artifact: Path, state: str, flags: list[str], load_seconds: str) -> None:
    with fake_server(fake_artifact, *flags, FAKE_LOAD_SECONDS=load_seconds) as server:
        server.wait_for_line(state)
        server.signal(signal.SIGTERM)
        server.wait_for_line("draining")
        started = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
        assert time.monotonic() - started < 25


def test_a_unix_socket_in_place_of_a_port_and_ctrl_c_in_place_of_sigterm(fake_artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with fake_server(fake_artifact, "--uds", str(path)) as server:
        server.wait_for_line(f"listening on unix:{path}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(path))
            client.sendall(b"GET /readyz HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        server.signal(signal.SIGINT)
        assert server.wait() == 0


@pytest.mark.parametrize("is_ignored", [False, True])
def test_sighup_drains_unless_nohup_has_it_ignored(fake_artifact: Path, is_ignored: bool) -> None:
    with fake_server(fake_artifact, FAKE_NOHUP="1" * is_ignored).wait_until_ready() as server:
        server.signal(signal.SIGHUP)
        if is_ignored:
            assert server.request("GET", "/readyz")[0] == 200
            server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "draining" in server.log


CANARY = "xylophonist-4711"


def test_every_line_of_the_log_is_json_and_none_holds_a_text(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, "--log-level", "debug", POLYHEAD_LOGLEVEL="debug").wait_until_ready() as server:
        server.request("POST", "/encode", {"inputs": CANARY}, x_request_id="known-1")
        server.request("POST", "/encode", {"inputs": [CANARY, 1]})
        server.request("POST", f"/{CANARY}", {"inputs": CANARY})
        server.request("GET", f"/info?text={CANARY}")
        server.request("POST", "/tokenize", {"inputs": [CANARY]}, x_request_id=CANARY + " with a space")
        metrics = server.request("GET", "/metrics")[2]
        with server.connect(f"{CANARY} nonsense\r\n\r\n".encode()) as connection:
            connection.recv(1000)
        assert server.stop() == 0
        assert CANARY not in server.log
        assert CANARY.encode() not in metrics
        assert "no setting is called POLYHEAD_LOGLEVEL; did you mean POLYHEAD_LOG_LEVEL?" in server.log
        messages = {record["message"].split(" ")[0]: record for record in server.records()}
        assert messages["starting"]["settings"]["log_level"] == "debug"
        found = {name: messages["model"][name] for name in ("model", "precision", "workers")}
        assert found == {"model": "tests/fake", "precision": "fp32", "workers": 1}
        lines = [record for record in server.records() if record["logger"] == "service.request"]
        assert {"time", "level", "request_id", "route", "method", "status", "duration_s"} <= set(lines[0])
        assert lines[0]["request_id"] == "known-1"
        assert {"status": 200, "texts": 1, "tokens": 5, "truncated": 0}.items() <= lines[0].items()
        routes = ["/encode", "/encode", "unmatched", "/info", "/tokenize", "/metrics"]
        assert [line["route"] for line in lines] == routes


@pytest.fixture
def server() -> Server:
    """One that does not listen, and looks at its connections every millisecond."""
    return Server(read_settings(["--model", "nowhere", "--send-timeout", "0.004"]), Readiness(), Mock(), "nowhere")


async def test_timeouts_go_on_where_those_of_one_connection_fail(server: Server) -> None:
    broken, sound = Mock(), Mock()
    broken.enforce_timeouts.side_effect = AttributeError("a fault of ours")
    server.server_state.connections |= {broken, sound}
    server.in_background(server._check_connections())
    while sound.enforce_timeouts.call_count < 3:
        await asyncio.sleep(0.001)
    assert broken.transport.abort.called


async def test_a_process_whose_timeouts_or_measurements_end_does_not_go_on(server: Server) -> None:
    async def fail() -> None:
        raise OSError("no clock")

    server.in_background(fail())
    while not server.should_exit:
        await asyncio.sleep(0.001)
    assert str(server.failure) == "cannot go on: no clock"


async def test_of_who_is_held_up_for_too_long_the_longest_comes_first(server: Server) -> None:
    now = asyncio.get_running_loop().time()
    starts = [None, now, now - STALLED_SECONDS - 1, now - STALLED_SECONDS - 9]
    server.server_state.connections = {Mock(unused_since=start, sending_since=start) for start in starts}
    assert [one.unused_since for one in server._held_up("unused_since", "anything")] == starts[:1:-1]
    assert server._held_up("unused_since", "anything") == [], "somebody has just looked"
    assert server._held_up("sending_since", "anything"), "a flood of clients keeps no slow sender in"


async def test_lag_is_what_held_the_loop_up() -> None:
    lags: list[float] = []
    watcher = asyncio.create_task(watch_loop_lag(lags.append, interval=0.01))
    await asyncio.sleep(0.05)
    time.sleep(0.3)  # what the watcher is there to see
    await asyncio.sleep(0.05)
    watcher.cancel()
    assert len(lags) > 3
    assert min(lags) >= 0
    assert 0.25 < max(lags) < 5


INTERFACES = Path("/proc/net/if_inet6")  # address, index, length, scope, flags, name
LINK_SCOPE = "20"


def test_an_address_of_one_link_is_listened_on() -> None:
    rows = [line.split() for line in INTERFACES.read_text().splitlines()] if INTERFACES.exists() else []
    found = next(((row[0], row[5]) for row in rows if row[3] == LINK_SCOPE), None)
    if found is None:
        pytest.skip("no interface has a link-local address")
    digits, name = found
    address = ":".join(digits[start : start + 4] for start in range(0, 32, 4))
    with bind(f"{address}%{name}", 0) as listener:
        assert address_of(listener).startswith("http://[fe80:")


@pytest.mark.parametrize(
    ("host", "reached"),
    [("::", ["127.0.0.1", "::1"]), ("::1", ["::1"]), ("0.0.0.0", ["127.0.0.1"])],  # noqa: S104 - what is tested
)
def test_every_address_is_both_families_where_ipv6_is_asked_for(host: str, reached: list[str]) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this system has no IPv6, or keeps the families apart")
    with bind(host, 0) as listener:
        port = listener.getsockname()[1]
        assert [address for address in ("127.0.0.1", "::1") if is_reached(address, port)] == reached


def is_reached(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_unix_socket_replaces_the_file_of_one_that_is_gone_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with listening(read_settings(["--model", "any", "--uds", str(path)])) as (_, first):
        first[0].close()  # it drains, or was killed: the file stays
        successor = bind_unix(path)
    with successor:
        assert address_of(successor) == f"unix:{path}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(path))
        with pytest.raises(StartFailure, match=f"cannot listen on {path}: Address already in use; .* another --uds"):
            bind_unix(path)
    path.unlink()
    path.write_text("a file of somebody's")
    with pytest.raises(StartFailure, match=f"cannot listen on {path}: File exists"):
        bind_unix(path)
    assert path.read_text() == "a file of somebody's"
    with pytest.raises(StartFailure, match="No such file or directory"):
        bind_unix(tmp_path / "nowhere" / "socket")


def test_model_that_does_not_load_ends_the_process_with_one_line(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, FAKE_LOAD_ERROR="the graph is\nbroken") as server:
        assert server.wait() == 1
        assert server.lines[-1] == f"python -m service: cannot load {fake_artifact}: the graph is broken"
        assert "Traceback" not in server.log


def test_changed_file_is_refused_by_its_name(fake_artifact: Path, tmp_path: Path) -> None:
    shutil.copytree(fake_artifact, tmp_path, dirs_exist_ok=True)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes().replace(b"cat", b"cow"))
    with pytest.raises(StartFailure, match=re.escape(f"{tokenizer} has SHA-256")):
        serve(read_settings(["--model", str(tmp_path), "--port", "0"]))


def test_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = rf"^cannot listen on 127\.0\.0\.1:{port}: Address already in use; .*choose another --port$"
        ours = listening(read_settings(["--model", "any", "--port", str(port)]))
        with pytest.raises(StartFailure, match=message), ours:
            pass


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Has a server load its models, without a port."""
    monkeypatch.setattr("service.server.keep_collections_short", lambda: None)  # the tests' own objects come and go
    servers: list[Server] = []

    def become_ready(*arguments: str) -> Server:
        servers.append(Server(read_settings([*arguments, "--workers", "1"]), Readiness(), load_fake_runner, "nowhere"))
        asyncio.run(end_of_start(servers[-1]))
        return servers[-1]

    async def end_of_start(server: Server) -> None:
        server.in_background(server._become_ready())
        await asyncio.wait(server._background)

    yield become_ready
    for model in (model for server in servers for model in server._services.models if model.loaded):
        model.runner().close(5)


def test_a_server_starts_without_the_model_that_does_not_load(
    start: Callable[..., Server], fake_artifact: Path, tmp_path: Path
) -> None:
    server = start(f"one={fake_artifact}", f"two={tmp_path / 'none'}")
    assert server.failure is None
    value = server._services.metrics.registry.get_sample_value
    for gauge, values in (("model_ready", [1, 0]), ("workers", [1, 0]), ("queue_limit_tokens", [131_072, 0])):
        assert [value(f"polyhead_{gauge}", {"model": name}) for name in ("one", "two")] == values
    client = TestClient(server.config.app)  # type: ignore[arg-type]  # uvicorn takes other kinds of apps too
    assert client.get("/readyz").status_code == 200
    bodies = [{"inputs": "cat", "model": name} for name in ("one", "two")]
    assert [client.post("/encode", json=body).status_code for body in bodies] == [200, 503]


def test_a_model_whose_files_are_damaged_has_its_own_name(
    start: Callable[..., Server], fake_artifact: Path, tmp_path: Path
) -> None:
    """Else clients who name it are told that there is no such model, and as the default it ends the others."""
    second = write_fake_artifact(tmp_path / "second")
    write_manifest(second, replace(read_manifest(second), model="tests/second"))
    (second / TOKENIZER).unlink()
    server = start(str(fake_artifact), str(second), "--default", "tests/second")
    assert server.failure is None
    client = TestClient(server.config.app)  # type: ignore[arg-type]  # uvicorn takes other kinds of apps too
    for body, status in (({"model": "tests/fake"}, 200), ({"model": "tests/second"}, 503), ({}, 503)):
        assert client.post("/encode", json={"inputs": "cat", **body}).status_code == status
    assert 'polyhead_model_ready{model="tests/second"} 0.0' in client.get("/metrics").text


async def test_a_model_that_is_removed_while_it_loads_stays_away(
    monkeypatch: pytest.MonkeyPatch, fake_artifact: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("service.server.keep_collections_short", lambda: None)
    second = write_fake_artifact(tmp_path / "second")
    loop, loads, is_asked = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def load(settings: Settings, on_batch: Callable[[BatchRecord], None]) -> Runner:
        if settings.model == second:
            loop.call_soon_threadsafe(loads.set)
            is_asked.wait()
        return load_fake_runner(settings, on_batch)

    settings = read_settings([f"one={fake_artifact}", f"two={second}", "--workers", "1"])
    server = Server(settings, Readiness(), load, "nowhere")
    models = server._services.models
    starting = asyncio.ensure_future(server._become_ready())
    await loads.wait()
    removing = asyncio.ensure_future(models.remove(models.find("two"), 5))
    await asyncio.sleep(0)
    is_asked.set()
    await asyncio.gather(starting, removing)
    assert [model.name for model in models] == ["one"]
    models.find("one").runner().close(5)


def test_an_unknown_default_ends_the_start(start: Callable[..., Server], fake_artifact: Path, tmp_path: Path) -> None:
    second = write_fake_artifact(tmp_path / "second")
    server = start(f"one={fake_artifact}", f"two={second}", "--default", "three")
    assert (server.should_exit, server.readiness.is_ready()) == (True, False)
    assert str(server.failure) == "--default three: no such model; one, two are served here"
    alone = start(f"one={fake_artifact}", "--default", "three")
    assert str(alone.failure) == "--default three: no such model; one is served here"
