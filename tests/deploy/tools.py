"""Programs that check deploy/: from .tools (`make tools`), else from the path, else the test is skipped by name."""

import shutil
import subprocess
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

import pytest

from benchmarks.service.replicas import NoNginx
from deploy.observability.scrape import NoPrometheus
from service.settings import Settings

Entered = TypeVar("Entered")
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def tool(name: str, hint: str = "`make tools` installs it") -> str:
    """Its path; skips the test if it is missing."""
    found = shutil.which(name, path=str(ROOT / ".tools" / "bin")) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not there: {hint}")
    return found


def run(*command: str | Path, data: str | None = None) -> str:
    """What a program wrote; fails with all of it where the program does."""
    done = subprocess.run(  # noqa: S603 - programs that the tests name
        [str(part) for part in command], cwd=ROOT, input=data, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def install_packages(check: Path, folder: Path) -> str:
    """Copies a folder with a package.json and installs what it locks, for this run; the path of `node`."""
    node, npm = (tool(name, "Node.js brings it") for name in ("node", "npm"))
    shutil.copytree(check, folder, dirs_exist_ok=True)
    run(npm, "ci", "--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts", "--engine-strict=false")
    return node


@contextmanager
def or_skip(program: AbstractContextManager[Entered]) -> Iterator[Entered]:
    """Skips the test where the program is not installed."""
    try:
        with program as entered:
            yield entered
    except (NoNginx, NoPrometheus) as missing:
        pytest.skip(str(missing))


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[int]:
    """Answers HTTP with a handler until the block ends; the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def seconds_to_drain(settings: Settings) -> float:
    """As service/server.py: the requests, a second for the last answers, then the workers."""
    return settings.shutdown_timeout + 1 + settings.shutdown_timeout


def most_memory(settings: Settings) -> float:
    """Bytes that the default model and its requests may take, as deploy/README.md adds them up (Sizing)."""
    return 218e6 + settings.max_held_body_bytes + settings.max_held_answer_bytes
