import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from service.machine.cpu import cgroup_quota, lower_thread_priority, usable_cores

V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/cpu,cpuacct"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="ascii")
    return root


QUOTAS = {
    "version 2, namespaced": ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "150000 100000"}, 1.5),
    "version 2, own group": ({"proc/self/cgroup": "0::/a/b", f"{V2}/a/b/cpu.max": "400000 100000"}, 4.0),
    "version 2, a parent has less": (
        {"proc/self/cgroup": "0::/a/b", f"{V2}/a/b/cpu.max": "400000 100000", f"{V2}/a/cpu.max": "50000 100000"},
        0.5,
    ),
    "version 2, no quota": ({"proc/self/cgroup": "0::/a", f"{V2}/a/cpu.max": "max 100000"}, None),
    "version 2, quota of the parent only": (
        {"proc/self/cgroup": "0::/a/b", f"{V2}/a/b/cpu.max": "max 100000", f"{V2}/a/cpu.max": "300000 100000"},
        3.0,
    ),
    "version 2 without a namespace, path of the host": (
        {"proc/self/cgroup": "0::/kubepods/pod1/c1", f"{V2}/cpu.max": "200000 100000"},
        2.0,
    ),
    "version 2 with a path above the namespace": (
        {"proc/self/cgroup": "0::/../../other", f"{V2}/cpu.max": "200000 100000"},
        2.0,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "5:memory:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/a",
            f"{V1}/a/cpu.cfs_quota_us": "250000",
            f"{V1}/a/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/a/cpu.cfs_quota_us": "1",
            "sys/fs/cgroup/memory/a/cpu.cfs_period_us": "100000",
        },
        2.5,
    ),
    "version 1, mounted as cpu": (
        {
            "proc/self/cgroup": "1:cpu:/",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000",
        },
        2.0,
    ),
    "version 1, no quota": (
        {"proc/self/cgroup": "4:cpu,cpuacct:/", f"{V1}/cpu.cfs_quota_us": "-1", f"{V1}/cpu.cfs_period_us": "100000"},
        None,
    ),
    "both versions, less in the first": (
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/a\n0::/a",
            f"{V1}/a/cpu.cfs_quota_us": "100000",
            f"{V1}/a/cpu.cfs_period_us": "100000",
            f"{V2}/unified/a/cpu.max": "700000 100000",
        },
        1.0,
    ),
    "a hierarchy of the second version that other names contain": (
        {"proc/self/cgroup": "3:cpuset:/a", f"{V2}/a/cpu.max": "100000 100000"},
        None,
    ),
    "no cgroups": ({}, None),
    "files that say nothing": ({"proc/self/cgroup": "0::/\nnonsense", f"{V2}/cpu.max": "many"}, None),
    "a period of nothing": ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "100000 0"}, None),
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
    ],
)
def test_takes_the_lesser_of_affinity_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, affinity: int, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(affinity)))
    root = tree(tmp_path, {"proc/self/cgroup": "0::/", f"{V2}/cpu.max": quota})
    assert usable_cores(root) == cores


def test_without_an_affinity_all_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores(tmp_path) == 6


def test_this_machine_has_a_core_to_use() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("start", [0, 12])  # the second is nicer than the step: no step may go back
def test_thread_gives_way_from_where_it_is(start: int) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    found: list[int] = []

    def main() -> None:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, before + start)
        lower_thread_priority(5)
        found.append(os.getpriority(os.PRIO_PROCESS, thread))

    run_thread(main)
    assert found == [min(19, before + start + 5)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_thread_goes_on_where_its_priority_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    lower_thread_priority(5)


def run_thread(main: Callable[[], None]) -> None:
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
