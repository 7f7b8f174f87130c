"""How many processes serve, and what each of them gets of the machine and of the limits."""

import math
import os

from model.artifact import read_manifest
from model.manifest import ArtifactError
from service.machine.cpu import cgroup_quota, core_limit, usable_cores
from service.settings import Settings

# One text a request costs an event loop 0.4 to 0.6 ms, and a core of the model 2 (int8) or 4 to 5 ms (fp32); see
# docs/performance.md. With more cores behind it a loop is what holds the others up.
CORES_PER_PROCESS = {"int8": 4}
CORES_PER_PROCESS_OTHERWISE = 10

_SHARED = ("max_connections", "max_queue_tokens", "max_held_body_bytes", "max_held_answer_bytes")
_AT_LEAST = {"max_queue_tokens": "max_request_tokens", "max_held_body_bytes": "max_body_bytes"}


def processes_of(settings: Settings) -> int:
    """Processes that serve; chosen by cores and precision where the settings leave it open, one for a GPU."""
    if settings.processes:
        return settings.processes
    if settings.provider != "cpu":
        return 1
    try:
        precision = read_manifest(settings.model).precision
    except (ArtifactError, OSError):
        return 1  # which says what is wrong with the artifact
    return math.ceil(usable_cores() / CORES_PER_PROCESS.get(precision, CORES_PER_PROCESS_OTHERWISE))


def share_of(settings: Settings, index: int, processes: int) -> Settings:
    """What one of several processes is told: its part of every limit on all requests, and its workers."""
    shares = {name: -(-getattr(settings, name) // processes) for name in _SHARED}
    for name, least in _AT_LEAST.items():
        shares[name] = max(shares[name], getattr(settings, least))  # or the largest request could never be served
    if not settings.workers and settings.provider == "cpu":
        shares["workers"] = max(1, _whole_cores(index, processes) // settings.intra_op_threads)
    return settings.model_copy(update=shares)


def cores_of(index: int, processes: int) -> list[int] | None:
    """The cores that a process is tied to; None where it runs on all of them.

    That is where there are fewer cores than processes, where a quota leaves less than the cores (which ones are free
    is then the kernel's to choose), and on systems that tie no process to cores.
    """
    quota = cgroup_quota()
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < processes or (quota is not None and quota < len(cores)):
        return None
    return cores[_first(index, len(cores), processes) : _first(index + 1, len(cores), processes)]


def _whole_cores(index: int, processes: int) -> int:
    """Cores to plan workers for: all of them are shared out, whether a process is tied to its own or not."""
    cores = math.floor(core_limit())
    return _first(index + 1, cores, processes) - _first(index, cores, processes)


def _first(index: int, cores: int, processes: int) -> int:
    return index * cores // processes
