"""A process that cannot start says why in one line, and ends with 1."""

import errno
import os
import socket
import threading
from pathlib import Path

import pytest

import service.listeners
from service.lifecycle import Server
from service.machine.listener import StartFailure
from service.server import serve
from service.settings import read_settings
from tests.service.process import ServerProcess, fake_server


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
