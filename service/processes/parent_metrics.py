"""The metrics of all processes: the parent's own, those of its children, and what children that ended have counted.

A child that was killed takes with it what it had counted since somebody last asked; no total that was ever shown falls.
"""

import asyncio
import math
from collections.abc import Callable, Collection

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge

from service.machine.cpu import core_limit
from service.machine.memory import memory_limit
from service.observability import metric_names as names
from service.observability.snapshots import Snapshot, merge_snapshots, take_snapshot, totals_of
from service.processes.child_process import ChildProcess

ANSWER_SECONDS = 1.0  # that a child has; then what it said last stands for it


class ParentMetrics:
    """Gathers what is scraped.

    Attributes:
        restarts: children that were started in place of ones that died.

    Args:
        processes: that should serve.
        is_ready: whether all of them do.
    """

    def __init__(self, processes: int, is_ready: Callable[[], bool]) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # published without annotations
        self._registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)
        self._gauge(names.PROCESSES, "Processes that serve, without the one that starts them.", processes)
        self._gauge(names.READY, "1 while all processes take traffic, else 0.").set_function(lambda: float(is_ready()))
        self._gauge(names.CPU_LIMIT, "Cores that affinity and cgroup leave all processes.", core_limit())
        memory = memory_limit()
        self._gauge(
            names.MEMORY_LIMIT,
            "Memory that cgroup and machine leave all processes.",
            math.nan if memory is None else memory,
        )
        self.restarts = Counter(
            names.PROCESS_RESTARTS, "Processes started in place of ones that died.", registry=self._registry
        )
        self._ended: Snapshot = []

    async def gather(self, children: Collection[ChildProcess]) -> Snapshot:
        """The metrics of all.

        Args:
            children: those that are there, read again once they have answered.
        """
        asked = [asyncio.ensure_future(child.update_metrics()) for child in children if child.state != "starting"]
        if asked:
            _, late = await asyncio.wait(asked, timeout=ANSWER_SECONDS)
            for waiting in late:
                waiting.cancel()
        theirs = [child.metrics for child in children if child.metrics is not None]
        return await asyncio.to_thread(merge_snapshots, [take_snapshot(self._registry), self._ended, *theirs])

    def keep(self, child: ChildProcess) -> None:
        """Keeps what a child that is gone has counted."""
        if child.metrics is not None:
            self._ended = merge_snapshots([self._ended, totals_of(child.metrics)])

    def _gauge(self, name: str, text: str, value: float = 0) -> Gauge:
        made = Gauge(name, text, registry=self._registry)
        made.set(value)
        return made
