"""Where the kernel keeps this process's limits: the directories of its cgroup, version 1 and 2.

It finds directories and reads small files. What a file means is the caller's knowledge.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

Controller = Literal["cpu", "memory"]

_V2_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")  # pure v2, and v2 beside v1 (systemd's hybrid layout)
_V1_MOUNTS: dict[Controller, tuple[str, ...]] = {
    "cpu": ("sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpu"),
    "memory": ("sys/fs/cgroup/memory",),
}


def cgroup_directories(root: Path, controller: Controller) -> Iterator[tuple[Literal[1, 2], Path]]:
    """Version and directory of every group that limits this process, from its own up to the mount.

    Args:
        root: the directory that holds `proc` and `sys`, other than `/` in tests only.
        controller: whose limits are asked for.
    """
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")  # hierarchy:controllers:path, cgroups(7)
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            yield from ((2, directory) for mount in _V2_MOUNTS for directory in _upwards(root / mount, path))
        elif controller in controllers.split(","):
            yield from ((1, found) for mount in _V1_MOUNTS[controller] for found in _upwards(root / mount, path))


def read_text(path: Path) -> str | None:
    """The text of a small file of the kernel; None if there is none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def read_number(path: Path) -> int | None:
    """The same as a whole number; None if it is no number, as `max`."""
    try:
        return int(read_text(path) or "")
    except ValueError:
        return None


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The cgroup's directory and those above it.

    A container without a cgroup namespace sees the host's path, while its own group is mounted at the top. So the
    mount itself is always among them, and directories that do not exist are the caller's to skip.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:count])
