"""A server process under test: started, watched through its log, ended with it."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
START_LIMIT = 60.0
END_LIMIT = 30.0


def read_sample(page: str, series: str) -> float:
    """A sample of the page of metrics; of a model's the first model's."""
    found = re.search(rf'^{re.escape(series)}({{model="[^"]*"}})? (\S+)$', page, re.MULTILINE)
    assert found, f"no series {series}"
    return float(found[2])


class ServerProcess:
    """`python -m MODULE FLAGS`, on a free port unless they name one; its log read line by line."""

    def __init__(self, module: str, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        port = () if "--port" in flags else ("--port", "0")
        command = [sys.executable, "-W", "error", "-m", module, *flags, *port]
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            command, cwd=ROOT, env={**os.environ, **(environment or {})}, stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, from its log."""
        return self._address_in("probes are answered on")

    @property
    def admin_address(self) -> tuple[str, int]:
        """The address of its admin port, likewise."""
        return self._address_in("metrics and documentation are on")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def wait_until_ready(self) -> Self:
        try:
            self.wait_for_line("listening on http://")
        except AssertionError:
            self._end()
            raise
        return self

    def wait_for_line(self, text: str) -> str:
        def found() -> str | None:
            return next((line for line in list(self.lines) if text in line), None)

        wait_until(lambda: found() is not None or not self._reader.is_alive(), START_LIMIT)
        line = found()
        assert line is not None, f"the process ended without {text!r}:\n{self.log}"
        return line

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, limit: float = END_LIMIT) -> int:
        code = self._process.wait(limit)
        self._reader.join()
        sys.stdout.write(f"the process ended with {code}, its log:\n{self.log}\n")  # shown where the test fails
        return code

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def connect(self, sent: bytes = b"", *, room: int | None = None) -> socket.socket:
        """A connection on which this is sent; its client has room for `room` bytes, or as many as usual."""
        connection = socket.socket()
        if room is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        connection.settimeout(START_LIMIT)
        connection.connect(self.address)
        connection.sendall(sent)
        return connection

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """One request on its own connection: status, headers, body."""
        connection = http.client.HTTPConnection(*self.address, timeout=START_LIMIT)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            data = None
            if body is not None:
                data, sent = json.dumps(body).encode(), {"content-type": "application/json", **sent}
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> Any:
        """The JSON of an answer with status 200."""
        status, _, answer = self.request("POST", path, body)
        assert status == 200, answer[:500]
        return json.loads(answer)

    def records(self) -> list[dict[str, Any]]:
        """The log's lines as they were meant: JSON, each of them."""
        return [json.loads(line) for line in self.lines]

    def _address_in(self, text: str) -> tuple[str, int]:
        line = self.wait_for_line(text)
        match = re.search(r"http://([\d.]+):(\d+)", line)
        assert match, line
        return match[1], int(match[2])

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stderr, self._process.stdout):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line.decode().rstrip("\n"))


def fake_server(directory: Path, *flags: str, **environment: str) -> ServerProcess:
    """The service on a model that computes nothing."""
    return ServerProcess(
        "tests.service.fake_server", "--model", str(directory), "--workers", "1", *flags, environment=environment
    )


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Returns once it holds; fails after this many seconds. Asks more and more rarely, for asking costs as well."""
    end, pause = time.monotonic() + seconds, 0.005
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(pause)
        pause = min(0.05, 1.5 * pause)
