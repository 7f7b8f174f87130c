"""How much memory this process may use: its cgroup's limit and the machine's, whichever is less."""

from collections.abc import Iterator
from pathlib import Path

from service.machine.cgroup import cgroup_directories, read_number, read_text

_LIMIT_FILES = {2: "memory.max", 1: "memory.limit_in_bytes"}  # v1 says "none" with a number beyond any machine


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes; None if the system does not say.

    Args:
        root: the directory that holds `proc` and `sys`, other than `/` in tests only.
    """
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[int]:
    for version, directory in cgroup_directories(root, "memory"):
        if (limit := read_number(directory / _LIMIT_FILES[version])) is not None:
            yield limit
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            yield int(value.split()[0]) * 1024
