"""The process from start to end: probes, signals, exit codes, what it writes."""

import asyncio
import errno
import json
import os
import signal
import socket
import threading
import time
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn

import service.lifecycle
import service.listeners
from service.lifecycle import Server
from service.machine.listener import StartFailure
from service.server import serve
from service.settings import read_settings
from tests.service.process import ServerProcess, wait_until

CANARY = "xylophonist-4711"
FAKE = "tests.service.fake_server"


def fake_server(directory: Path, *flags: str, **environment: str) -> ServerProcess:
    return ServerProcess(FAKE, "--model", str(directory), "--workers", "1", *flags, environment=environment)


def test_probes_tell_loading_from_ready_from_draining(fake_artifact: Path, tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    with fake_server(fake_artifact, "--drain-delay", "1", FAKE_LOAD_UNTIL=str(loaded)) as server:
        assert server.request("GET", "/healthz")[0] == 200
        status, headers, _ = server.request("GET", "/readyz")
        assert (status, headers["retry-after"]) == (503, "1")
        assert server.request("POST", "/encode", {"inputs": "cat"})[0] == 503
        assert b"polyhead_ready 0.0" in server.request("GET", "/metrics")[2]
        loaded.touch()
        server.wait_until_ready()
        assert server.request("GET", "/readyz")[0] == 200
        assert b"polyhead_ready 1.0" in server.request("GET", "/metrics")[2]
        server.signal(signal.SIGTERM)
        wait_until(lambda: server.request("GET", "/readyz")[0] == 503)
        assert server.request("GET", "/healthz")[0] == 200
        status, headers, _ = server.request("POST", "/encode", {"inputs": "cat"})
        assert (status, headers["connection"]) == (200, "close")
        assert server.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_process_with_0(fake_artifact: Path, number: signal.Signals) -> None:
    with fake_server(fake_artifact).wait_until_ready() as server:
        server.signal(number)
        assert server.wait() == 0


def test_signal_while_loading_ends_the_process_with_0(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, FAKE_LOAD_SECONDS="0.5") as server:
        assert server.address
        assert server.stop() == 0


def test_running_requests_are_answered_before_the_end(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, FAKE_RUN_SECONDS="0.5").wait_until_ready() as server:
        statuses: list[int] = []
        bodies: list[Any] = [{"inputs": ["cat"] * count} for count in (1, 2, 3)]
        clients = [
            threading.Thread(target=lambda body=body: statuses.append(server.request("POST", "/encode", body)[0]))
            for body in bodies
        ]
        for client in clients:
            client.start()
        wait_until(lambda: b"polyhead_requests_in_flight 4.0" in server.request("GET", "/metrics")[2])
        assert server.stop() == 0
        for client in clients:
            client.join()
        assert statuses == [200, 200, 200]


def test_requests_beyond_the_shutdown_limit_are_told_so(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, "--shutdown-timeout", "0.2", FAKE_RUN_SECONDS="2").wait_until_ready() as server:
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


class UntimedConnection:
    def enforce_timeouts(self, now: float) -> None:
        """Has no limit."""


def test_a_connection_that_is_over_is_kept_nowhere() -> None:
    async def test() -> None:
        server = Server(uvicorn.Config(Mock(), log_config=None), Mock(), Mock(), Mock(), 0.001)
        checks = asyncio.create_task(server._check_connections())
        connection: Any = UntimedConnection()
        server.server_state.connections.add(connection)
        await asyncio.sleep(0.02)
        server.server_state.connections.clear()
        reference = weakref.ref(connection)
        del connection
        assert reference() is None
        checks.cancel()

    asyncio.run(test())


def test_timeouts_go_on_where_those_of_one_connection_fail() -> None:
    async def test() -> None:
        server = Server(uvicorn.Config(Mock(), log_config=None), Mock(), Mock(), Mock(), 0.001)
        broken, sound = Mock(), Mock()
        broken.enforce_timeouts.side_effect = AttributeError("a fault of ours")
        server.server_state.connections |= {broken, sound}
        checks = asyncio.create_task(server._check_connections())
        while sound.enforce_timeouts.call_count < 3 and not checks.done():
            await asyncio.sleep(0.001)
        assert sound.enforce_timeouts.call_count >= 3
        assert broken.transport.abort.called
        checks.cancel()

    asyncio.run(test())


def test_a_process_whose_timeouts_or_measurements_end_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_observe: object) -> None:
        raise OSError("no clock")

    monkeypatch.setattr(service.lifecycle, "watch_loop_lag", fail)

    async def test() -> None:
        server = Server(uvicorn.Config(Mock(), lifespan="off", log_config=None), Mock(), Mock(), Mock(), 1.0)
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            await server.startup([listener])
            for _ in range(1000):
                if server.should_exit:
                    break
                await asyncio.sleep(0.001)
            for waiting in server.servers:
                waiting.close()
        assert server.should_exit
        assert str(server.failure) == "cannot go on: no clock"

    asyncio.run(test())


def test_host_that_is_no_name(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, "--host", "a..b") as server:
        assert server.wait() == 1
        assert "cannot listen on a..b:" in server.log.splitlines()[-1]


def test_model_that_does_not_load_ends_the_process_with_one_line(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, FAKE_LOAD_ERROR="the graph is\nbroken") as server:
        assert server.wait() == 1
        assert server.lines[-1] == f"python -m service: cannot load {fake_artifact}: the graph is broken"
        assert "Traceback" not in server.log


def test_a_system_without_threads_is_said_in_one_line(
    fake_artifact: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(StartFailure, match=f"cannot load {fake_artifact}: can't start new thread$"):
        serve(read_settings(["--model", str(fake_artifact), "--port", "0"]))
    assert "the server failed" in caplog.text


def test_a_system_without_descriptors_is_said_in_one_line(fake_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Server, "run", refuse)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(service.listeners, "bind", lambda *_: listener)
        with pytest.raises(StartFailure, match=r"^cannot serve: .*Too many open files$"):
            serve(read_settings(["--model", str(fake_artifact)]))


def test_bytecode_without_docstrings_serves(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, PYTHONOPTIMIZE="2").wait_until_ready() as server:
        assert server.request("POST", "/encode", {"inputs": "cat"})[0] == 200
        assert server.request("GET", "/openapi.json")[0] == 200
        assert server.stop() == 0


def test_directory_that_is_no_artifact(tmp_path: Path) -> None:
    with ServerProcess("service", "--model", str(tmp_path)) as server:
        assert server.wait() == 1
        assert server.lines[-1].startswith(f"python -m service: cannot load {tmp_path}: {tmp_path} holds no manifest")


def test_changed_file_is_refused_by_its_name(fake_artifact: Path, tmp_path: Path) -> None:
    for path in fake_artifact.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes().replace(b"cat", b"cow"))
    with ServerProcess("service", "--model", str(tmp_path)) as server:
        assert server.wait() == 1
        assert f"{tokenizer} has SHA-256" in server.lines[-1]


def test_port_that_is_taken(fake_artifact: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with fake_server(fake_artifact, "--port", str(port)) as server:
            assert server.wait() == 1
            assert f"cannot listen on 127.0.0.1:{port}: Address already in use; " in server.lines[-1]
            assert server.lines[-1].endswith("listens there, choose another --port")


def test_a_unix_socket_in_place_of_a_port(fake_artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with fake_server(fake_artifact, "--uds", str(path)) as server:
        server.wait_for_line(f"listening on unix:{path}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(path))
            client.sendall(b"GET /readyz HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        assert server.stop() == 0
        assert not path.exists()


def test_every_line_of_the_log_is_json_and_none_holds_a_text(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, "--log-level", "debug").wait_until_ready() as server:
        server.request("POST", "/encode", {"inputs": CANARY}, x_request_id="known-1")
        server.request("POST", "/encode", {"inputs": [CANARY, 1]})
        server.request("POST", f"/{CANARY}", {"inputs": CANARY})
        server.request("GET", f"/info?text={CANARY}")
        server.request("POST", "/tokenize", {"inputs": [CANARY]}, x_request_id=CANARY + " with a space")
        metrics = server.request("GET", "/metrics")[2]
        with server.connect() as connection:
            connection.sendall(f"{CANARY} nonsense\r\n\r\n".encode())
            connection.recv(1000)
        assert server.stop() == 0
        assert CANARY not in server.log
        assert CANARY.encode() not in metrics
        lines = [record for record in server.records() if record["logger"] == "service.request"]
        assert {"time", "level", "request_id", "route", "method", "status", "duration_s"} <= set(lines[0])
        assert lines[0]["request_id"] == "known-1"
        assert {key: lines[0][key] for key in ("status", "texts", "tokens", "truncated")} == {
            "status": 200,
            "texts": 1,
            "tokens": 5,
            "truncated": 0,
        }
        assert [line["route"] for line in lines] == [
            "/encode",
            "/encode",
            "unmatched",
            "/info",
            "/tokenize",
            "/metrics",
        ]


def test_log_says_what_runs_where(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, "--drain-delay", "0.5").wait_until_ready() as server:
        assert server.stop() == 0
        messages = {record["message"].split(" ")[0]: record for record in server.records()}
        assert messages["starting"]["settings"]["drain_delay"] == 0.5
        assert messages["model"]["model"] == "tests/fake"
        assert messages["model"]["precision"] == "fp32"
        assert messages["model"]["workers"] == 1
        assert messages["listening"]["message"].startswith("listening on http://127.0.0.1:")


def test_misspelt_variable_is_reported(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, POLYHEAD_LOGLEVEL="debug").wait_until_ready() as server:
        assert server.stop() == 0
        assert "no setting is called POLYHEAD_LOGLEVEL; did you mean POLYHEAD_LOG_LEVEL?" in server.log


def test_a_log_that_nobody_reads_any_more_stops_nothing(fake_artifact: Path) -> None:
    with fake_server(fake_artifact).wait_until_ready() as server:
        server.may_read.clear()
        for _ in range(600):  # lines of more bytes than a pipe takes
            assert server.request("GET", "/info")[0] == 200
        server.may_read.set()
        wait_until(lambda: server.log.count('"route":"/info"') == 600)
        server.may_read.clear()
        for _ in range(600):
            assert server.request("GET", "/info")[0] == 200
        server.signal(signal.SIGTERM)
        wait_until(lambda: server._process.poll() is not None)
        assert server.wait() == 0


def test_a_failure_behind_the_loading_ends_the_process() -> None:
    """The task that loads the model is awaited by nobody: it has to say itself that it failed."""

    async def test() -> None:
        server = Server(uvicorn.Config(Mock(), log_config=None), Mock(), lambda *_: Mock(spec=[]), Mock(), 1.0)
        await server._become_ready()
        assert server.should_exit
        assert isinstance(server.failure, StartFailure)
        assert "Mock object has no attribute 'manifest'" in str(server.failure)

    asyncio.run(test())
