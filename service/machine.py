"""What the process runs on: cores, memory, descriptors, heap, and versions of packages. Knows nothing of the service.

ONNX Runtime and `os.cpu_count` see the whole machine, inside a container too. If more threads compute than the cgroup's
quota allows, the kernel stops all of them, the event loop's included, for the rest of each period.
"""

import contextlib
import ctypes
import functools
import gc
import importlib.metadata
import logging
import math
import os
import platform
import re
import resource
import sys
import threading
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Literal

Controller = Literal["cpu", "memory"]

RETURNED_FROM = 2**20  # bytes; blocks of this size and free tops of a heap larger than it go back to the system

RARE_COLLECTIONS = 100
"""Collections of the middle generation before one of all objects; ten by default. A request for megabytes of attention
set off several, each of which stopped every thread for 10 to 40 ms on Zen 3. What a request made goes without them, by
its reference counts."""

_ROOT = Path("/")
_V2_MOUNT = "sys/fs/cgroup"
_V1_MOUNTS = {"cpu": ("sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpu"), "memory": ("sys/fs/cgroup/memory",)}
_MEMORY_FILES = {2: "memory.max", 1: "memory.limit_in_bytes"}  # v1 says "none" with a number beyond any machine
_OWN_DESCRIPTORS = 32  # files, pipes and listeners; 14 of them after the start
_ENOUGH_DESCRIPTORS = 2**20  # where the system has no limit, or a larger one
# Parameters of mallopt, from malloc.h, with the environment variable by which a user may set each.
_HEAP_PARAMETERS = {
    "MALLOC_TRIM_THRESHOLD_": (-1, RETURNED_FROM),
    "MALLOC_MMAP_THRESHOLD_": (-3, RETURNED_FROM),
    "MALLOC_ARENA_MAX": (-8, 2),
}

_MADV_DONTNEED = 4
# Of /proc/self/smaps, a file's mapping that is not writable and has no page of the process's own, in memory or swapped.
_MAPPING = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) r-.*? (?P<file>/.*)\n"
    r"(?:[A-Z]\w+:.*\n)*?Anonymous: +0 kB\n(?:[A-Z]\w+:.*\n)*?Swap: +0 kB$",
    re.MULTILINE,
)

logger = logging.getLogger(__name__)


def usable_cores(root: Path = _ROOT) -> int:
    """Cores to plan compute threads for, at least 1. The event loop runs on the fraction that is rounded off."""
    return max(1, math.floor(core_limit(root)))


def core_limit(root: Path = _ROOT) -> float:
    """Cores this process may keep busy, fractions too: its affinity or its cgroup's quota, whichever is less."""
    quota = cgroup_quota(root)
    has_affinity = hasattr(os, "sched_getaffinity")  # macOS has none
    cores = float(len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
    return cores if quota is None else min(cores, quota)


def cgroup_quota(root: Path = _ROOT) -> float | None:
    """CPU quota in cores: the least from this process's cgroup up to the mount; None if none is set."""
    quotas = []
    for version, directory in cgroup_directories(root, "cpu"):
        if version == 2:  # `cpu.max` holds quota and period in microseconds, or `max` and a period
            quota, period = map(_number, (_read_text(directory / "cpu.max") or "max max").split())
        else:  # -1 is no quota
            quota = _number(_read_text(directory / "cpu.cfs_quota_us"))
            period = _number(_read_text(directory / "cpu.cfs_period_us"))
        if quota and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limit(root: Path = _ROOT) -> int | None:
    """Bytes that this process may use: its cgroup's limit or the machine's; None if the system does not say."""
    files = [directory / _MEMORY_FILES[version] for version, directory in cgroup_directories(root, "memory")]
    limits = [limit for file in files if (limit := _number(_read_text(file))) is not None]
    if "MemTotal" in (found := _read_kilobytes(root / "proc/meminfo")):
        limits.append(1024 * found["MemTotal"])
    return min(limits, default=None)


def anonymous_memory() -> float:
    """Resident bytes of this process that no file backs; NaN if the system does not say."""
    found = _read_kilobytes(_ROOT / "proc/self/status")
    return 1024.0 * (found["RssAnon"] + found["RssShmem"]) if "RssAnon" in found else math.nan


def _read_kilobytes(path: Path) -> dict[str, int]:
    """The lines `NAME: NUMBER kB` of a file of the kernel."""
    lines = (line.split() for line in (_read_text(path) or "").splitlines())
    return {line[0].removesuffix(":"): int(line[1]) for line in lines if line[2:] == ["kB"]}


def cgroup_directories(root: Path, controller: Controller) -> Iterator[tuple[Literal[1, 2], Path]]:
    """Version and directory of every group that limits this process, from its own up to the mount.

    A container without a cgroup namespace sees the host's path, while its own group is mounted at the top. So the
    mount itself is always among them. Some of the directories may not exist. `root` holds `proc` and `sys`.
    """
    for line in (_read_text(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")  # hierarchy:controllers:path, cgroups(7)
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            yield from ((2, directory) for directory in _upwards(root / _V2_MOUNT, path))
        elif controller in controllers.split(","):
            yield from ((1, found) for mount in _V1_MOUNTS[controller] for found in _upwards(root / mount, path))


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:count])


def _read_text(path: Path) -> str | None:
    """The text of a small file of the kernel; None if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()  # a group's name may be any bytes
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    """A whole number; None if it is none, as `max`."""
    try:
        return int(text or "")
    except ValueError:
        return None


def lower_thread_priority(niceness: int) -> None:
    """Adds to the calling thread's nice value, so that the process's other threads go first.

    On Linux only, which gives each thread a nice value of its own. If a sandbox forbids the call, latencies are longer.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # EPERM, or what a sandbox's filter answers
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)


def make_room(connections: int, *, besides: int) -> int:
    """Raises the process's limit of descriptors; returns how many connections fit, at most `connections`.

    Without a descriptor clients are reset, and no line says why. `besides` are connections that are counted apart.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit, most = (
        _ENOUGH_DESCRIPTORS if one == resource.RLIM_INFINITY else min(one, _ENOUGH_DESCRIPTORS) for one in (soft, hard)
    )
    needed = connections + besides + _OWN_DESCRIPTORS
    for wanted in (most, min(most, needed)):  # as far as it goes: clients may come faster than refused ones are closed
        if limit < wanted:
            with contextlib.suppress(OSError, ValueError):  # macOS has one more limit, which is named nowhere
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                limit = wanted
    fitting = max(1, limit - besides - _OWN_DESCRIPTORS)
    if fitting >= connections:
        return connections
    logger.warning(
        "the system allows %d descriptors (ulimit -n): %d connections instead of %d", limit, fitting, connections
    )
    return fitting


def bound_heap(chosen: Container[str] = ()) -> bool:
    """Has glibc's heap give free memory back to the system; False for another C library. Call it before threads start.

    By default glibc keeps a heap for each thread, up to eight a core, and raises the size from which memory is returned
    at once to the largest block it ever freed (mallopt(3), M_MMAP_THRESHOLD). Environment variables that are set
    (`chosen`) it has read already.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    unset = [parameter for name, parameter in _HEAP_PARAMETERS.items() if name not in chosen]
    return all(mallopt(number, value) == 1 for number, value in unset)


def trim_heap() -> None:
    """Returns to the system what is free in the heaps of all threads; does nothing if the C library is not glibc."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def release_mapped_files(*paths: Path) -> None:
    """Takes pages of mapped files out of the process's memory; they come back, from the page cache, once they are used.

    Only where a mapping is not writable and no page was ever changed, so nothing can be lost. On Linux.

    Args:
        paths: the files, or folders that hold them.
    """
    with contextlib.suppress(OSError, AttributeError):  # there are no such files elsewhere, or no such call
        madvise, roots = ctypes.CDLL(None).madvise, [path.resolve() for path in paths]
        for mapping in _MAPPING.finditer(os.fsdecode(Path("/proc/self/smaps").read_bytes())):
            if any(Path(mapping["file"]).is_relative_to(root) for root in roots):
                start, end = int(mapping["start"], 16), int(mapping["end"], 16)
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)


def keep_collections_short() -> None:
    """Takes all present objects out of garbage collections, and makes full collections rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], RARE_COLLECTIONS)


DISTRIBUTION = "polyhead"

_PACKAGES = (DISTRIBUTION, "onnxruntime", "onnxruntime-gpu", "tokenizers", "numpy", "fastapi", "uvicorn")


@functools.cache  # the present folder may be gone when a process is replaced
def module_command(module: str) -> tuple[str, ...]:
    """The command that runs a module with this process's own import path.

    `-m` looks into the present folder first, where a user's `random.py` would hide Python's. It does so only if this
    process does too.
    """
    looks_here = not {"", os.getcwd()}.isdisjoint(sys.path)
    return (sys.executable, *(() if looks_here else ("-P",)), "-m", module)


def own_version() -> str:
    """This project's, or `unknown` where it is not installed."""
    return installed_versions().get(DISTRIBUTION, "unknown")


@functools.cache  # read from files, for which a process may have no descriptor left later, nor an event loop the time
def installed_versions() -> dict[str, str]:
    """By package; of the two onnxruntime packages only one is there."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
