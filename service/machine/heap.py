"""Has the C library's heap give free memory back to the system.

By default glibc keeps a heap for each thread, up to eight a core, and raises the size from which memory is returned at
once to the largest block it ever freed (mallopt(3), M_MMAP_THRESHOLD): after some answers of a few megabytes, freed
memory stays with the process. `python -m benchmarks.service soak` shows what that comes to.
"""

import ctypes
import platform
from collections.abc import Container, Mapping
from types import MappingProxyType

RETURNED_FROM = 2**20  # bytes; blocks of this size and free tops of a heap larger than it go back to the system

# Parameters of mallopt, from malloc.h, with the environment variable by which a user may set each.
_PARAMETERS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "MALLOC_TRIM_THRESHOLD_": (-1, RETURNED_FROM),
        "MALLOC_MMAP_THRESHOLD_": (-3, RETURNED_FROM),
        "MALLOC_ARENA_MAX": (-8, 2),
    }
)


def bound_heap(chosen: Container[str] = ()) -> bool:
    """Sets the heap's thresholds; False if the C library is not glibc. Call it before threads start.

    Args:
        chosen: names of environment variables that are set; glibc has already read those that it knows.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    unset = [parameter for name, parameter in _PARAMETERS.items() if name not in chosen]
    return all(mallopt(number, value) == 1 for number, value in unset)
