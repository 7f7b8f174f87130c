"""The server under test: start it, wait until it is ready, read its CPU time and memory from /proc, stop it."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, NamedTuple

from benchmarks.lib.command import CannotMeasure, last_line
from benchmarks.lib.load import Address

READY_LIMIT = 120.0  # seconds until ready; peers import torch and load for long
STOP_LIMIT = 20.0  # seconds to leave after SIGTERM
POLL = 0.005  # seconds between two looks at a server that starts
PORTS = range(20000, 32768)  # behind the ports of Ray's workers, below those that Linux gives to outgoing connections


class Server(NamedTuple):
    """A server that answers."""

    address: Address
    session: int  # of the processes whose CPU and memory count
    ready_after: float  # seconds from the process' start to its first ready answer

    def cpu_seconds(self) -> float:
        """User and system time of all its processes so far."""
        return self._sum(11, 12) / os.sysconf("SC_CLK_TCK")

    def count_cores(self) -> Callable[[], float]:
        """Counts from now on; what it returns says how many cores all its processes have kept busy since."""
        used, began = self.cpu_seconds(), time.perf_counter()
        return lambda: (self.cpu_seconds() - used) / (time.perf_counter() - began)

    def resident_bytes(self) -> int:
        """Memory that its processes hold in RAM now."""
        return self._sum(21) * os.sysconf("SC_PAGE_SIZE")

    def pss_bytes(self, kind: str = "Pss") -> int:
        """Memory of all its processes, pages that several hold counted once (proc(5), `smaps_rollup`).

        `Pss` is all of it, `Pss_File` the mapped files among it: libraries, and weights that are read in place.
        """
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.processes()]
        found = [line.split() for text in rollups for line in text.splitlines()]
        return 1024 * sum(int(size) for name, size, *_ in found if name == f"{kind}:")

    def processes(self) -> list[int]:
        """The ids of all its processes, the first process first."""
        return [self.session, *sorted(set(_session_stats(self.session)) - {self.session})]

    def _sum(self, *fields: int) -> int:
        return sum(int(stat[field]) for stat in _session_stats(self.session).values() for field in fields)

    def pause(self) -> None:
        """Stops all its processes at once."""
        os.killpg(self.session, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets them go on."""
        os.killpg(self.session, signal.SIGCONT)


def free_port() -> int:
    """A free port of 127.0.0.1 that no outgoing connection takes before its server listens."""
    while True:
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", secrets.choice(PORTS)))
            return int(probe.getsockname()[1])


@contextmanager
def started(
    command: Sequence[str], port: int, ready_path: str, environment: Mapping[str, str], folder: Path | None = None
) -> Iterator[Server]:
    """Runs a server on this port of 127.0.0.1 until the block ends; `ready_path` answers 200 once it takes traffic.

    The environment is added to this process' own; the folder is its working directory, this process' own if None.
    Raises `CannotMeasure` if it ended, or was not ready in time; the message holds the last line that it wrote.
    """
    address, began = Address("127.0.0.1", port), time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 - commands are the scripts' own
            command,
            env={**os.environ, **environment},
            cwd=folder,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait_until_ready(process, address, ready_path, log)
            yield Server(address, process.pid, time.perf_counter() - began)
        finally:
            _stop(process)


def polyhead(
    artifact: Path,
    settings: Mapping[str, str],
    *,
    port: int | None = None,
    checkout: Path | None = None,
    program: Sequence[str] = ("service",),
) -> AbstractContextManager[Server]:
    """This project's service on an artifact, on a free port unless told, with `POLYHEAD_*` variables.

    Its code is that of the checkout, the working directory's if None. The program is module and first arguments;
    `benchmarks.http.servers` has services that leave something out.
    """
    port = free_port() if port is None else port
    environment = {"POLYHEAD_HOST": "127.0.0.1", "POLYHEAD_PORT": str(port), **settings}
    command = [sys.executable, "-m", *program, "--model", str(artifact.resolve())]
    return started(command, port, "/readyz", environment, checkout)


def _wait_until_ready(process: subprocess.Popen[bytes], address: Address, path: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + READY_LIMIT
    while not _is_ready(address, path):
        if process.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            last = last_line(log.read().decode(errors="replace"))
            raise CannotMeasure(f"the server was not ready (exit code {process.poll()}): {last}")
        time.sleep(POLL)


def _is_ready(address: Address, path: str) -> bool:
    with suppress(OSError, HTTPException), closing(HTTPConnection(address.host, address.port, timeout=5)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGCONT)  # a paused one cannot end
    try:
        process.wait(STOP_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _session_stats(session: int) -> dict[int, list[str]]:
    """By process id, fields 3 and later of /proc/PID/stat (proc(5)) of every process in a session."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[3]) == session:
            found[int(path.parent.name)] = fields
    return found
