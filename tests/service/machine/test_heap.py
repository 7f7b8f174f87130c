"""Freed memory goes back to the system; measured in processes of their own, heaps being the process's."""

import platform
import subprocess
import sys

import pytest

# Threads allocate 64 MB in blocks of 600 kB, with a small block that stays behind each; then all large ones are freed.
CHURN = """
import sys, threading
from service.machine.heap import bound_heap
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
