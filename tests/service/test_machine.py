import ctypes
import os
import platform
import re
import resource
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from service.machine import (
    _MAPPING,
    cgroup_quota,
    lower_thread_priority,
    make_room,
    memory_limit,
    release_mapped_files,
    usable_cores,
)
from tests.service.http.test_protocol import read_answer
from tests.service.process import fake_server

V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/cpu,cpuacct"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    return root


def v1(folder: str, quota: str, period: str = "100000") -> dict[str, str]:
    """A quota as the first version writes it."""
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period}


def v2(group: str, **quotas: str) -> dict[str, str]:
    """The process's group, and the quotas of groups by their paths, "" of the mount's own."""
    return {"proc/self/cgroup": f"0::{group}"} | {f"{V2}{path}/cpu.max": quota for path, quota in quotas.items()}


QUOTAS: dict[str, tuple[dict[str, str], float | None]] = {
    "version 2, namespaced": (v2("/", **{"": "150000 100000"}), 1.5),
    "version 2, own group": (v2("/a/b", **{"/a/b": "400000 100000"}), 4.0),
    "version 2, a parent has less": (v2("/a/b", **{"/a/b": "400000 100000", "/a": "50000 100000"}), 0.5),
    "version 2, no quota": (v2("/a", **{"/a": "max 100000"}), None),
    "version 2, quota of the parent only": (v2("/a/b", **{"/a/b": "max 100000", "/a": "300000 100000"}), 3.0),
    "version 2 without a namespace, path of the host": (v2("/kubepods/pod1/c1", **{"": "200000 100000"}), 2.0),
    "version 2, a name beyond ASCII": (v2("/größe", **{"/größe": "200000 100000"}), 2.0),
    "version 2 with a path above the namespace": (v2("/../../other", **{"": "200000 100000"}), 2.0),
    "version 1": (
        {"proc/self/cgroup": "5:memory:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/a"}
        | v1(f"{V1}/a", "250000")
        | v1("sys/fs/cgroup/memory/a", "1"),
        2.5,
    ),
    "version 1, mounted as cpu": ({"proc/self/cgroup": "1:cpu:/"} | v1("sys/fs/cgroup/cpu", "100000", "50000"), 2.0),
    "version 1, no quota": ({"proc/self/cgroup": "4:cpu,cpuacct:/"} | v1(V1, "-1"), None),
    "a controller whose name begins so": ({"proc/self/cgroup": "3:cpuset:/a"} | v1(f"{V1}/a", "100000"), None),
    "no cgroups": ({}, None),
}


@pytest.mark.parametrize(("files", "quota"), QUOTAS.values(), ids=QUOTAS.keys())
def test_reads_the_least_quota_up_to_the_mount(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert cgroup_quota(tree(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("quota", "affinity", "cores"),
    [
        ("max 100000", 8, 8),
        ("1600000 100000", 8, 8),  # the affinity is less
        ("400000 100000", 8, 4),
        ("390000 100000", 8, 3),  # a fraction is rounded down
        ("50000 100000", 8, 1),  # and never to nothing
        ("max 100000", None, 6),  # as on macOS
    ],
)
def test_takes_the_lesser_of_affinity_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, affinity: int | None, cores: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    if affinity is None:
        monkeypatch.delattr(os, "sched_getaffinity")
    else:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(affinity)))
    assert usable_cores(tree(tmp_path, {"proc/self/cgroup": "0::/", f"{V2}/cpu.max": quota})) == cores


@pytest.mark.parametrize("start", [0, 12])  # the second is nicer than the step: no step may go back
def test_thread_gives_way_from_where_it_is(start: int) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    found: list[int] = []

    def main() -> None:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, before + start)
        lower_thread_priority(5)
        found.append(os.getpriority(os.PRIO_PROCESS, thread))

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    assert found == [min(19, before + start + 5)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_thread_goes_on_where_its_priority_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "setpriority", Mock(side_effect=PermissionError))
    lower_thread_priority(5)


GIB = 2**30
MEMINFO = {"proc/meminfo": "MemTotal:       4194304 kB\nMemFree:        1 kB"}
GROUP_2, GROUP_1 = {"proc/self/cgroup": "0::/a/b"} | MEMINFO, {"proc/self/cgroup": "5:memory:/a"} | MEMINFO
LIMITS: dict[str, tuple[dict[str, str], int | None]] = {
    "nobody knows": ({}, None),
    "machine only": (MEMINFO, 4 * GIB),
    "version 2": (GROUP_2 | {f"{V2}/a/b/memory.max": str(GIB)}, GIB),
    "version 2, none": (GROUP_2 | {f"{V2}/a/b/memory.max": "max"}, 4 * GIB),
    "version 2, a parent has less": (GROUP_2 | {f"{V2}/a/b/memory.max": str(GIB), f"{V2}/a/memory.max": "9"}, 9),
    "version 1": (GROUP_1 | {f"{V2}/memory/a/memory.limit_in_bytes": str(GIB)}, GIB),
    "version 1, none": (GROUP_1 | {f"{V2}/memory/a/memory.limit_in_bytes": "9223372036854771712"}, 4 * GIB),
}


@pytest.mark.parametrize(("files", "expected"), LIMITS.values(), ids=LIMITS)
def test_limit_is_the_least(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert memory_limit(tree(tmp_path, files)) == expected


ENDLESS = resource.RLIM_INFINITY
REFUSED = ValueError()


@pytest.mark.parametrize(
    ("limits", "asked", "answers", "fitting"),
    [
        ((2000, 3000), [3000], [None], 990),
        ((1032, 1032), [], [], 990),
        ((ENDLESS, ENDLESS), [], [], 990),
        ((256, 3000), [3000], [None], 990),
        ((256, ENDLESS), [2**20], [None], 990),
        ((256, 1000), [1000], [None], 958),
        ((256, ENDLESS), [2**20, 1032], [REFUSED, None], 990),  # it gives less than it names
        ((256, 3000), [3000, 1032], [REFUSED, REFUSED], 256 - 42),
        ((20, 20), [], [], 1),
    ],
)
def test_the_limit_is_raised_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limits: tuple[int, int],
    asked: list[int],
    answers: list[ValueError | None],
    fitting: int,
) -> None:
    setrlimit = Mock(side_effect=answers)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert make_room(990, besides=10) == fitting
    assert [call.args[1] for call in setrlimit.mock_calls] == [(wanted, limits[1]) for wanted in asked]
    assert ("ulimit -n" in caplog.text) == (fitting < 990)


def test_clients_beyond_the_descriptors_are_told_so(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, FAKE_DESCRIPTORS="112").wait_until_ready() as server, ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(40)]
        for client in clients:
            client.sendall(b"GET /info HTTP/1.1\r\nHost: test\r\n\r\n")
        assert Counter(read_answer(client)[0] for client in clients) == {200: 16, 503: 24}


# Threads allocate 64 MB in blocks of 600 kB, with a small block that stays behind each; then all large ones are freed.
CHURN = """
import sys, threading
from service.machine import bound_heap
if "bound" in sys.argv:
    assert bound_heap()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
large = bytearray(24 * 2**20); del large  # from now on blocks up to 24 MB are kept by default
def churn():
    kept, freed = [], []
    for _ in range(27):
        freed.append(bytearray(1_200_000))
        kept.append(bytearray(5_000))
    held.append(kept)
held = []
before = resident()
for _ in range(3):
    threads = [threading.Thread(target=churn) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print(resident() - before)
"""


def kept_bytes(*arguments: str) -> int:
    command = [sys.executable, "-c", CHURN, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - the text above
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_is_returned() -> None:
    as_it_comes, bounded = kept_bytes(), kept_bytes("bound")
    assert bounded < 12e6
    assert bounded < as_it_comes / 2


def resident(mapping: np.memmap[Any, Any]) -> int:
    """Kilobytes of it in memory."""
    smaps = os.fsdecode(Path("/proc/self/smaps").read_bytes())
    found = re.search(rf"^{mapping.ctypes.data:x}-.*?^Rss: +(\d+) kB", smaps, re.MULTILINE | re.DOTALL)
    assert found is not None
    return int(found[1])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_only_what_can_be_read_again_leaves_memory(tmp_path: Path) -> None:
    (tmp_path / "a model").mkdir()
    path, elsewhere = tmp_path / "a model" / "weights", tmp_path / os.fsdecode(b"w\xffights")
    for file in (path, elsewhere):
        np.arange(2**20, dtype=np.uint8).tofile(file)
    read, other = np.memmap(path, mode="r"), np.memmap(elsewhere, mode="r")
    writable, changed = np.memmap(path, mode="c"), np.memmap(path, mode="c")
    writable[:] = changed[:] = 7
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(changed.ctypes.data), ctypes.c_size_t(changed.size), 1) == 0
    total = int(read.sum()) + int(other.sum())
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    release_mapped_files(link)
    assert resident(read) == 0
    assert resident(other) == resident(changed) == resident(writable) == 1024
    assert (writable == 7).all()
    assert (changed == 7).all()
    assert int(read.sum()) + int(other.sum()) == total


@pytest.mark.parametrize(
    ("rights", "anonymous", "swapped", "is_released"),
    [("r--p", 0, 0, True), ("r-xp", 0, 0, True), ("rw-p", 0, 0, False), ("r--p", 4, 0, False), ("r--p", 0, 4, False)],
)
def test_mappings_with_pages_that_no_file_has_stay(
    rights: str, anonymous: int, swapped: int, is_released: bool
) -> None:
    """The kernel counts a changed page as anonymous while it is in memory, else as swapped."""
    fields = {"Size": 8, "Rss": 8, "Anonymous": anonymous, "AnonHugePages": 0, "Swap": swapped, "SwapPss": 0}
    lines = [
        f"7f00-7f02 {rights} 00000000 fe:00 1   /a model/weights",
        *(f"{n}: {kb:8} kB" for n, kb in fields.items()),
    ]
    text = "\n".join([*lines, "VmFlags: rd mr", "7f03-7f04 rw-p 00000000 00:00 0", *lines[1:2], "Anonymous: 0 kB", ""])
    assert [found["file"] for found in _MAPPING.finditer(text)] == ["/a model/weights"] * is_released
