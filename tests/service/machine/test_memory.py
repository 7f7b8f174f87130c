from pathlib import Path

import pytest

from service.machine.memory import memory_limit

GIB = 2**30
MEMINFO = {"proc/meminfo": "MemTotal:       4194304 kB\nMemFree:        1 kB"}
LIMITS = {
    "machine only": ({}, 4 * GIB),
    "version 2": ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": str(GIB)}, GIB),
    "version 2, none": ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": "max"}, 4 * GIB),
    "version 2, a parent has less": (
        {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/b/memory.max": str(2 * GIB),
            "sys/fs/cgroup/a/memory.max": "9",
        },
        9,
    ),
    "version 1": (
        {"proc/self/cgroup": "5:memory:/a", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(GIB)},
        GIB,
    ),
    "version 1, none": (
        {"proc/self/cgroup": "5:memory:/", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"},
        4 * GIB,
    ),
}


@pytest.mark.parametrize(("files", "expected"), LIMITS.values(), ids=LIMITS)
def test_limit_is_the_least(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    for name, text in (MEMINFO | files).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="ascii")
    assert memory_limit(tmp_path) == expected


def test_nobody_knows(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
