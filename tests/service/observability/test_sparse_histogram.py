"""Against the library's own histogram, given the same values."""

from collections.abc import Callable

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from service.observability.sparse_histogram import SparseHistogram

NAME = "some_seconds"
LABELS = ("route", "status")
COMBINATIONS = [("/a", "200"), ("/a", "500"), ('/quote"d\\', "200"), ("/b", "200")]
BUCKETS = (0.1, 1, 10)
Encode = Callable[[Collector], bytes]


@pytest.fixture(autouse=True)
def without_creation_times() -> None:
    """As the service has it, for the whole process: two histograms are not made at the same moment."""
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # published without annotations


def make() -> tuple[SparseHistogram, Histogram, CollectorRegistry]:
    registry = CollectorRegistry()
    reference = Histogram(NAME, "Some text.", LABELS, buckets=BUCKETS, registry=registry)
    for combination in COMBINATIONS:
        reference.labels(*combination)
    return SparseHistogram(NAME, "Some text.", LABELS, COMBINATIONS, BUCKETS), reference, registry


def lines(page: bytes) -> list[bytes]:
    return sorted(line for line in page.splitlines() if line != b"# EOF")


@pytest.mark.parametrize("encode", [generate_latest, generate_openmetrics])
@pytest.mark.parametrize("values", [[], [("/b", "200", 0.5)], [("/b", "200", 0.5), ("/new", "418", 20.0)] * 2])
def test_page_is_the_librarys(encode: Encode, values: list[tuple[str, str, float]]) -> None:
    sparse, reference, registry = make()
    for route, status, value in values:
        sparse.write(generate_latest)  # a scrape in between changes nothing, whatever its format
        sparse.observe((route, status), value)
        reference.labels(route, status).observe(value)
    assert lines(sparse.write(encode)) == lines(encode(registry))
    other: Encode = generate_openmetrics
    assert lines(sparse.write(other)) == lines(other(registry))


def test_page_is_the_librarys_with_every_combination_observed() -> None:
    sparse, reference, registry = make()
    for combination in COMBINATIONS:
        sparse.observe(combination, 0.2)
        reference.labels(*combination).observe(0.2)
    assert lines(sparse.write(generate_latest)) == lines(generate_latest(registry))


def test_samples_are_the_librarys() -> None:
    sparse, reference, _ = make()
    sparse.observe(("/b", "200"), 2.0)
    reference.labels("/b", "200").observe(2.0)
    (ours,), (theirs,) = sparse.collect(), reference.collect()
    assert sorted(ours.samples, key=str) == sorted(theirs.samples, key=str)
