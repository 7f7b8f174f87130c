"""How many cores this process may keep busy: its affinity and its cgroup's quota, whichever is less.

ONNX Runtime and `os.cpu_count` see the whole machine, inside a container too. If more threads compute than the quota
allows, the kernel stops all of them, the event loop's included, for the rest of each period.
"""

import contextlib
import math
import os
import sys
import threading
from pathlib import Path

from service.machine.cgroup import cgroup_directories, read_number, read_text

_ROOT = Path("/")


def usable_cores(root: Path = _ROOT) -> int:
    """Cores to plan compute threads for, at least 1.

    A fraction is rounded down: with a quota of 1.5 the event loop runs on the half that is left over, and a second
    compute thread would have the kernel stop the whole process for a quarter of the time.
    """
    return max(1, math.floor(core_limit(root)))


def core_limit(root: Path = _ROOT) -> float:
    """Cores this process may keep busy, fractions too."""
    quota = cgroup_quota(root)
    cores = float(_scheduled_cores())
    return cores if quota is None else min(cores, quota)


def _scheduled_cores() -> int:
    """Cores of this process's affinity; all of them on macOS, which has no affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cgroup_quota(root: Path = _ROOT) -> float | None:
    """CPU quota in cores: the least from this process's cgroup up to the mount; None if none is set.

    Args:
        root: the directory that holds `proc` and `sys`, other than `/` in tests only.
    """
    found = (_READERS[version](directory) for version, directory in cgroup_directories(root, "cpu"))
    return min((quota for quota in found if quota is not None), default=None)


def _read_v2(directory: Path) -> float | None:
    """`cpu.max`: quota and period in microseconds, or `max` and a period."""
    fields = (read_text(directory / "cpu.max") or "").split()
    if len(fields) != 2 or not all(field.isdecimal() for field in fields):
        return None
    return _divide(int(fields[0]), int(fields[1]))


def _read_v1(directory: Path) -> float | None:
    """`cpu.cfs_quota_us` (-1 is none) over `cpu.cfs_period_us`."""
    return _divide(read_number(directory / "cpu.cfs_quota_us"), read_number(directory / "cpu.cfs_period_us"))


def _divide(quota: int | None, period: int | None) -> float | None:
    return quota / period if quota and period and quota > 0 and period > 0 else None


_READERS = {2: _read_v2, 1: _read_v1}


def lower_thread_priority(niceness: int) -> None:
    """Adds to the calling thread's nice value, so that the process's other threads go first.

    Linux gives each thread a nice value of its own; elsewhere the call would slow the whole process, so it is not made.
    It adds, since in a process that is nice already a fixed value could raise the priority, which takes privileges.
    Where a sandbox forbids the call the service runs on, with longer latencies.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # EPERM, or what a sandbox's filter answers
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)
