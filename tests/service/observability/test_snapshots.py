"""The metrics of several registries as one page."""

import asyncio
import math
from collections.abc import Sequence
from unittest.mock import AsyncMock

import orjson
import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from service.app import create_app
from service.observability import metrics as names
from service.observability.metrics import Metrics
from service.observability.snapshots import GAUGES, MetricsPages, Snapshot, merge_snapshots, take_snapshot, totals_of
from service.processes.children import ParentMetrics
from service.services import Readiness
from service.settings import Settings

BUCKETS = (1, 5, 20)


def sent(snapshot: Snapshot) -> Snapshot:
    """As it comes out of another process."""
    found: Snapshot = orjson.loads(orjson.dumps(snapshot))
    return found


prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # published without annotations


def made(values: Sequence[int], waiting: float) -> CollectorRegistry:
    """A process that has counted these values."""
    registry = CollectorRegistry()
    counter = Counter("seen_total", "Values.", ("parity",), registry=registry)
    histogram = Histogram("size", "Values.", buckets=BUCKETS, registry=registry)
    for value in values:
        counter.labels("odd" if value % 2 else "even").inc()
        histogram.observe(value)
    Gauge(names.QUEUE_TOKENS, "Sum.", registry=registry).set(waiting)
    Gauge(names.QUEUE_OLDEST_AGE, "Largest.", registry=registry).set(waiting)
    Gauge(names.READY, "First.", registry=registry).set(waiting)
    return registry


def page(registry: CollectorRegistry, whole: Snapshot | None = None, accept: str = "") -> tuple[str, str]:
    """The page of a registry, or of all processes, and its content type."""
    found, content_type = asyncio.run(MetricsPages(registry).read(accept, AsyncMock(return_value=whole)))
    return found.decode(), content_type


def samples(snapshot: Snapshot) -> dict[tuple[str, ...], float]:
    return {(name, *labels.values()): value for metric in snapshot for name, labels, value, _ in metric["samples"]}


@given(st.lists(st.tuples(st.lists(st.integers(0, 40), max_size=8), st.floats(0, 1e6)), min_size=1, max_size=4))
def test_the_whole_is_what_one_process_had_counted(parts: list[tuple[list[int], float]]) -> None:
    whole = samples(merge_snapshots(sent(take_snapshot(made(*part))) for part in parts))
    values, gauges = [value for part in parts for value in part[0]], [part[1] for part in parts]
    one = samples(take_snapshot(made(values, 0)))
    for name in (names.QUEUE_TOKENS, names.QUEUE_OLDEST_AGE, names.READY):
        del one[name,]
    assert whole.pop((names.QUEUE_OLDEST_AGE,)) == max(gauges)
    assert whole.pop((names.READY,)) == gauges[0]
    assert math.isclose(whole.pop((names.QUEUE_TOKENS,)), sum(gauges))
    assert whole == one


@pytest.mark.parametrize("name", [names.MODEL_LOAD, "of_a_newer_version"])
def test_a_gauge_that_nobody_set_yields_to_one_that_is_set(name: str) -> None:
    def loaded(seconds: float) -> Snapshot:
        registry = CollectorRegistry()
        Gauge(name, "Largest.", registry=registry).set(seconds)
        return sent(take_snapshot(registry))

    assert samples(merge_snapshots([loaded(math.nan), loaded(2), loaded(1)])) == {(name,): 2}
    assert math.isnan(samples(merge_snapshots([loaded(math.nan)]))[name,])


def test_of_a_process_that_ended_its_totals_stay() -> None:
    assert {metric["name"] for metric in totals_of(take_snapshot(made([1, 2, 3], 7)))} == {"seen", "size"}


def test_the_newest_exemplar_is_shown() -> None:
    parts = []
    for name in ("old", "new", None):
        registry = CollectorRegistry()
        histogram = Histogram("size", "Values.", buckets=BUCKETS, registry=registry)
        histogram.observe(3, {"request_id": name} if name else None)
        parts.append(sent(take_snapshot(registry)))
    metrics = Metrics([], [])
    found, content_type = page(metrics.registry, merge_snapshots(parts), "application/openmetrics-text")
    assert content_type.startswith("application/openmetrics-text")
    assert 'size_bucket{le="5.0"} 3.0 # {request_id="new"} 3.0' in found


def test_a_page_of_one_snapshot_is_the_page_of_its_registry() -> None:
    metrics = Metrics([("/encode", "POST", 200)], ["overloaded"])
    metrics.count_refusal("overloaded")
    metrics.of_model("m").observe_texts([3, 4], truncated=1)

    def lines(whole: Snapshot | None) -> list[str]:  # but for what Python and the system count meanwhile
        found, _ = page(metrics.registry, whole)
        return [one for one in found.splitlines() if "polyhead_" in one and names.MEMORY_ANONYMOUS not in one]

    assert lines(sent(take_snapshot(metrics.registry))) == lines(None)


def test_every_gauge_of_the_service_says_how_it_is_combined(settings: Settings) -> None:
    async def gauges() -> set[str]:
        return {metric["name"] for metric in await parent.gather([]) if metric["type"] == "gauge"}

    _, services = create_app(settings, Readiness())
    parent = ParentMetrics(2, lambda: True)
    found = {metric["name"] for metric in take_snapshot(services.metrics.registry) if metric["type"] == "gauge"}
    assert found | asyncio.run(gauges()) == set(GAUGES)
