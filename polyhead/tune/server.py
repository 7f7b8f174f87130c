"""The server that is measured: a process of its own, as it would be run."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from polyhead.tune.layouts import Layout

READY = "listening on "
END_SECONDS = 30.0
# What would keep the client out, or answer something else than the model's speed.
NOT_MEASURED = ("UDS", "ADMIN_PORT", "API_KEYS", "API_KEYS_FILE", "ALLOWED_HOSTS", "TRACE_ENDPOINT", "LOG_LEVEL")


class ServerFailure(RuntimeError):
    """The server ended before it was ready; the message is the last line that it wrote."""


@contextmanager
def served(model: Path, layout: Layout, cores: frozenset[int] | None = None) -> Iterator[tuple[str, int]]:
    """Serves a model on a free port of this machine while the context lasts.

    Args:
        model: the artifact.
        layout: how it uses the cores. Other settings are the environment's.
        cores: which cores it may use; None for all that this process may use.

    Yields:
        Its address and port.

    Raises:
        ServerFailure: it did not become ready.
    """
    flags = ("--model", str(model), "--host", "127.0.0.1", "--port", "0")
    with _started([sys.executable, "-m", "service", *flags], _environment(os.environ, layout), cores) as process:
        try:
            yield _address(process)
        finally:
            _end(process)


def _environment(variables: Mapping[str, str], layout: Layout) -> dict[str, str]:
    left_out = {f"POLYHEAD_{name}" for name in NOT_MEASURED}
    # Measuring refuses nothing: however long the queue, its work is to be done.
    patient = {"POLYHEAD_MAX_QUEUE_DELAY": "3600", "POLYHEAD_REQUEST_TIMEOUT": "3600"}
    return {**{name: value for name, value in variables.items() if name not in left_out}, **layout.variables, **patient}


def _started(
    command: list[str], environment: Mapping[str, str], cores: frozenset[int] | None
) -> "subprocess.Popen[str]":
    """The process on these cores: it has those of who starts it."""
    own = os.sched_getaffinity(0) if cores is not None else frozenset[int]()
    try:
        if cores is not None:
            os.sched_setaffinity(0, cores)
        return subprocess.Popen(command, env=dict(environment), stderr=subprocess.PIPE, text=True)  # noqa: S603 - our own program
    finally:
        if cores is not None:
            os.sched_setaffinity(0, own)


def _address(process: "subprocess.Popen[str]") -> tuple[str, int]:
    last = "it ended without a word"
    for line in process.stderr or ():
        last = _message(line)
        if last.startswith(READY):
            where = urlsplit(last.removeprefix(READY))
            return where.hostname or "", where.port or 0
    raise ServerFailure(last)


def _message(line: str) -> str:
    """What a line of the log says; the line itself where it is none of the log's, as the last one of a failure."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(line)["message"])
    return line.strip()


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
