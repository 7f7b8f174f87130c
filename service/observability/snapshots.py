"""Metrics of several processes as one page: what a registry holds as plain data, and the sum of several of those.

A counter or histogram of the whole is the sum of its parts. A gauge is combined by what it means (`GAUGES`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar, Sample

from service.observability import metric_names as names

Snapshot = list[dict[str, Any]]
"""One mapping a metric, of JSON's types: name, documentation, type, and samples of [name, labels, value, exemplar]."""

Combine = Callable[[float, float], float]


def _add(ours: float, theirs: float) -> float:
    return ours + theirs


def _largest(ours: float, theirs: float) -> float:
    return theirs if math.isnan(ours) or theirs > ours else ours


def _first(ours: float, _theirs: float) -> float:
    """The parent's own, whose snapshot comes first."""
    return ours


GAUGES: Mapping[str, Combine] = MappingProxyType(
    {
        names.REQUESTS_IN_FLIGHT: _add,
        names.QUEUE_TEXTS: _add,
        names.QUEUE_TOKENS: _add,
        names.QUEUE_LIMIT_TOKENS: _add,  # each process has its share
        names.QUEUE_OLDEST_AGE: _largest,
        names.READY: _first,  # ready when all are
        names.MODEL_LOAD: _largest,
        names.WORKERS: _add,
        names.INTRA_OP_THREADS: _largest,
        names.CPU_LIMIT: _first,  # what the children share
        names.MEMORY_LIMIT: _first,
        names.MODEL_INFO: _largest,
        names.PROCESSES: _first,
        "process_virtual_memory_bytes": _add,
        "process_resident_memory_bytes": _add,
        "process_start_time_seconds": _first,
        "process_open_fds": _add,
        "process_max_fds": _add,
        "python_info": _largest,
    }
)


def take_snapshot(registry: CollectorRegistry) -> Snapshot:
    """Everything that a registry holds. Takes milliseconds: called on a thread."""
    return [
        {
            "name": metric.name,
            "documentation": metric.documentation,
            "type": metric.type,
            "samples": [[sample.name, sample.labels, sample.value, _plain(sample)] for sample in metric.samples],
        }
        for metric in registry.collect()
    ]


def merge_snapshots(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The whole of several processes; metrics and samples in the order in which they come first."""
    merged: dict[str, _MergedMetric] = {}
    for snapshot in snapshots:
        for metric in snapshot:
            if (found := merged.get(metric["name"])) is None:
                found = merged[metric["name"]] = _MergedMetric(metric)
            found.add(metric["samples"])
    return [metric.plain() for metric in merged.values()]


def totals_of(snapshot: Snapshot) -> Snapshot:
    """What stays of a process that has ended: its counters and histograms, for a total never falls."""
    return [metric for metric in snapshot if metric["type"] in ("counter", "histogram")]


class SnapshotCollector:
    """A snapshot in place of a registry, for the library to write."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """The library's own form of each metric."""
        for found in self._snapshot:
            metric = Metric(found["name"], found["documentation"], found["type"])
            for name, labels, value, exemplar in found["samples"]:
                number = math.nan if value is None else value  # JSON has no NaN
                metric.samples.append(Sample(name, labels, number, None, Exemplar(*exemplar) if exemplar else None))
            yield metric


@dataclass(slots=True)
class _MergedMetric:
    """One metric of several processes.

    Attributes:
        first: as the first process described it.
        samples: by name and labels, in the order in which they came.
    """

    first: Mapping[str, Any]
    samples: dict[tuple[str, ...], list[Any]] = field(default_factory=dict)

    def add(self, samples: Sequence[Sequence[Any]]) -> None:
        """Adds those of one process."""
        combine = GAUGES[self.first["name"]] if self.first["type"] == "gauge" else _add
        for name, labels, value, exemplar in samples:
            key = (name, *labels.values())  # a metric's labels are always in one order
            number = math.nan if value is None else value
            if (found := self.samples.get(key)) is None:
                self.samples[key] = [name, labels, number, exemplar]
                continue
            found[2] = combine(found[2], number)
            found[3] = _latest(found[3], exemplar)

    def plain(self) -> dict[str, Any]:
        """The same as the part of a snapshot."""
        return {**self.first, "samples": list(self.samples.values())}


def _plain(sample: Sample) -> list[Any] | None:
    """An exemplar's labels, value and time."""
    found = sample.exemplar
    if found is None:
        return None
    return [found.labels, found.value, None if found.timestamp is None else float(found.timestamp)]


def _latest(ours: Sequence[Any] | None, theirs: Sequence[Any] | None) -> Sequence[Any] | None:
    if ours is None or theirs is None:
        return ours or theirs
    return max(ours, theirs, key=lambda exemplar: exemplar[2] or 0.0)
