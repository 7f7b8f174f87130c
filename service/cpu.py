"""How many cores this process may keep busy: its affinity and its cgroup's quota, whichever is less.

ONNX Runtime and `os.cpu_count` see the whole machine, inside a container too; threads beyond the quota only make the
kernel stop all of them, the event loop's included, for the rest of each period.
"""

import math
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
_V2_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")  # pure v2, and v2 beside v1 (systemd's hybrid layout)
_V1_MOUNTS = ("sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpu")

_INTEGER_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"})


def usable_cores(root: Path = _ROOT) -> int:
    """Cores to plan compute threads for, at least 1.

    A fraction is rounded down: with a quota of 1.5 a second compute thread would have the kernel stop the whole process
    for a quarter of the time, while the half that is left over is what the event loop runs on.
    """
    quota = cgroup_quota(root)
    cores = len(os.sched_getaffinity(0))
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def cgroup_quota(root: Path = _ROOT) -> float | None:
    """CPU quota in cores: the least on the way from this process's cgroup up to the mount; None where none is set.

    Args:
        root: the directory that holds `proc` and `sys`, other than `/` in tests only.
    """
    groups = _read(root / "proc/self/cgroup")
    quotas = [quota for line in (groups or "").splitlines() for quota in _line_quotas(root, line)]
    return min(quotas, default=None)


def _line_quotas(root: Path, line: str) -> Iterator[float]:
    """Quotas that hold for one line of /proc/self/cgroup, `hierarchy:controllers:path` (cgroups(7))."""
    hierarchy, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if hierarchy == "0" and not controllers:
        mounts, read = _V2_MOUNTS, _read_v2
    elif "cpu" in controllers.split(","):
        mounts, read = _V1_MOUNTS, _read_v1
    else:
        return
    for mount in mounts:
        for directory in _upwards(root / mount, path):
            if (quota := read(directory)) is not None:
                yield quota


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The cgroup's directory and those above it.

    A container without a cgroup namespace sees its path of the host, and its own group mounted at the top: the
    directories that do not exist are passed over, the mount itself is always looked at.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:count])


def _read_v2(directory: Path) -> float | None:
    """`cpu.max`: quota and period in microseconds, or `max` and a period."""
    fields = (_read(directory / "cpu.max") or "").split()
    return _divide(fields[0], fields[1]) if len(fields) == 2 else None


def _read_v1(directory: Path) -> float | None:
    """`cpu.cfs_quota_us` (-1 is none) over `cpu.cfs_period_us`."""
    return _divide(_read(directory / "cpu.cfs_quota_us"), _read(directory / "cpu.cfs_period_us"))


def _divide(quota: str | None, period: str | None) -> float | None:
    try:
        quota_us, period_us = int(quota or ""), int(period or "")
    except ValueError:
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def has_integer_products(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Whether the processor multiplies 8-bit integers in one instruction; None where the system does not say.

    Without that (VNNI or AMX on x86, the dot product extension on Arm) int8 is no faster than fp32, and on x86 the
    kernels' 16-bit sums can saturate (onnxruntime, `mlas/lib/platform.cpp`).
    """
    try:
        text = cpuinfo.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        name, _, values = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return not _INTEGER_PRODUCTS.isdisjoint(values.split())
    return None


def lower_thread_priority(niceness: int) -> None:
    """Makes the calling thread yield to the process's others.

    Linux gives each thread its own nice value; elsewhere the call would slow the whole process, so it is not made.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
