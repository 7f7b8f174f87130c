"""The page that Prometheus scrapes; for several processes from snapshots of their registries, added up.

A counter or histogram of the whole is the sum of its parts. A gauge is combined by what it means (`GAUGES`).
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import add, itemgetter
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar, Sample

from service.observability import metrics as names

Snapshot = list[dict[str, Any]]
"""One mapping a metric, of JSON's types: name, documentation, type, and samples of [name, labels, value, exemplar].

An exemplar is [labels, value, seconds since 1970], or None.
"""

PAGES_A_SECOND = 4
_OPEN_METRICS = "application/openmetrics-text"


def _largest(ours: float, theirs: float) -> float:
    return theirs if math.isnan(ours) or theirs > ours else ours


def _first(ours: float, _theirs: float) -> float:
    """The parent's own, whose snapshot comes first."""
    return ours


GAUGES: Mapping[str, Callable[[float, float], float]] = {
    names.REQUESTS_IN_FLIGHT: add,
    names.QUEUE_TEXTS: add,
    names.QUEUE_TOKENS: add,
    names.QUEUE_LIMIT_TOKENS: add,  # each process has its share
    names.QUEUE_OLDEST_AGE: _largest,
    names.TOKENIZER_QUEUE_CHARACTERS: add,
    names.EXPLAIN_QUEUE_VECTORS: add,
    names.READY: _first,  # ready when all are
    names.MODEL_READY: min,  # of each that serves it
    names.MODEL_LOAD: _largest,
    names.WORKERS: add,
    names.BUSY_LIMIT: add,
    names.INTRA_OP_THREADS: _largest,
    names.CPU_LIMIT: _first,  # what the children share
    names.MEMORY_ANONYMOUS: add,
    names.MEMORY_LIMIT: _first,
    names.MODEL_INFO: _largest,
    names.PROCESSES: _first,
    "process_virtual_memory_bytes": add,
    "process_resident_memory_bytes": add,
    "process_start_time_seconds": _first,
    "process_open_fds": add,
    "process_max_fds": add,
    "python_info": _largest,
}


class MetricsPages:
    """The page for each scrape: Prometheus' text format, or OpenMetrics if `accept` names it.

    Each form is written a few times a second at most, else the last one is given: a page costs 20 microseconds a line,
    and with several processes each of them, while anybody may ask for it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._begun: dict[str, deque[float]] = {}  # by content type, when the last pages were
        self._pages: dict[str, asyncio.Task[bytes]] = {}

    async def read(self, accept: str, snapshot: Callable[[], Awaitable[Snapshot | None]]) -> tuple[bytes, str]:
        """The page and its content type; `snapshot` returns the metrics of all processes, None for one alone."""
        accept = _OPEN_METRICS if _OPEN_METRICS in accept else ""  # else a page for each version that is named
        encode, content_type = choose_encoder(accept)
        begun, now = self._begun.setdefault(content_type, deque(maxlen=PAGES_A_SECOND)), time.monotonic()
        page = self._pages.get(content_type)
        if page is None or (page.done() and (len(begun) < PAGES_A_SECOND or now >= begun[0] + 1)):
            begun.append(now)
            page = self._pages[content_type] = asyncio.create_task(self._write(encode, snapshot))
        return await asyncio.shield(page), content_type  # whoever leaves ends it for no other

    async def _write(self, encode: Callable[[Any], bytes], snapshot: Callable[[], Awaitable[Snapshot | None]]) -> bytes:
        whole = await snapshot()
        source = self._registry if whole is None else SimpleNamespace(collect=lambda: _metrics_of(whole))
        return await asyncio.to_thread(encode, source)


def _metrics_of(snapshot: Snapshot) -> Iterator[Metric]:
    """The library's own form of each metric."""
    for found in snapshot:
        metric = Metric(found["name"], found["documentation"], found["type"])
        for name, labels, value, exemplar in found["samples"]:
            number = math.nan if value is None else value  # JSON has no NaN
            metric.samples.append(Sample(name, labels, number, None, Exemplar(*exemplar) if exemplar else None))
        yield metric


def take_snapshot(registry: CollectorRegistry) -> Snapshot:
    """Everything that a registry holds. Takes milliseconds: called on a thread."""
    return [
        {
            "name": metric.name,
            "documentation": metric.documentation,
            "type": metric.type,
            "samples": [
                [sample.name, sample.labels, sample.value, sample.exemplar and list(sample.exemplar)]
                for sample in metric.samples
            ],
        }
        for metric in registry.collect()
    ]


def merge_snapshots(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The whole of several processes; metrics and samples in the order in which they come first."""
    merged: dict[str, dict[str, Any]] = {}
    for metric in chain.from_iterable(snapshots):
        whole = merged.setdefault(metric["name"], {**metric, "samples": {}})  # as the first process described it
        is_gauge = metric["type"] == "gauge"  # one unknown is a newer version's: SIGHUP replaces all but the parent
        combine = GAUGES.get(metric["name"], _largest) if is_gauge else add
        for name, labels, value, exemplar in metric["samples"]:
            key = (name, *labels.values())  # a metric's labels are always in one order
            number = math.nan if value is None else value
            if (found := whole["samples"].get(key)) is None:
                whole["samples"][key] = [name, labels, number, exemplar]
            else:
                exemplars = filter(None, (found[3], exemplar))
                found[2:] = combine(found[2], number), max(exemplars, key=itemgetter(2), default=None)
    return [{**whole, "samples": list(whole["samples"].values())} for whole in merged.values()]


def totals_of(snapshot: Snapshot) -> Snapshot:
    """What stays of a process that has ended: its counters and histograms, for a total never falls."""
    return [metric for metric in snapshot if metric["type"] in ("counter", "histogram")]
