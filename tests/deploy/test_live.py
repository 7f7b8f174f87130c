"""A real Prometheus scrapes the real service under load: every query of the dashboard returns data."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.lib.load import Address, Request, post, run_closed_loop
from benchmarks.lib.server import polyhead
from benchmarks.lib.texts import load_texts
from benchmarks.service.process import refused_requests
from deploy.observability.picture import Panel, ask, read_panels
from deploy.observability.scrape import NoPrometheus, Prometheus, Series, scraping
from model.artifact import Artifact
from service.observability import metrics as names

SECONDS = 12.0
STEP = "5s"

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def one_of_each(artifact: Artifact) -> list[Request]:
    """A short round, so that a slow machine meets every kind of request within seconds, too."""
    texts = load_texts("short", 32)
    return [
        *(post("/encode", {"inputs": text}) for text in texts[:10]),
        post("/encode", {"inputs": texts}),
        post("/encode", {"inputs": texts[:2], "output": "tokens", "attention": {"layers": "all"}}),
        post("/encode", {"inputs": "word " * 2000}),
        post("/v1/embeddings", {"input": texts[0], "model": artifact.manifest.model}),
        post("/tokenize", {"inputs": texts[0]}),
        post("/explain", {"a": texts[0], "b": texts[1]}),
        *refused_requests(artifact),
    ]


def answers(prometheus: Prometheus, panel: Panel, start: float, end: float) -> dict[str, list[Series]]:
    return {target["expr"]: ask(prometheus, target, start, end, step=STEP) for target in panel["targets"]}


@contextmanager
def watched(artifact: Path, folder: Path) -> Iterator[tuple[Address, Prometheus]]:
    """A service, and a Prometheus that scrapes it; and one of several processes, which has metrics of its own."""
    with ExitStack() as running:
        server = running.enter_context(polyhead(artifact, {}))
        several = running.enter_context(polyhead(artifact, {"POLYHEAD_PROCESSES": "2", "POLYHEAD_WORKERS": "2"}))
        try:
            prometheus = running.enter_context(scraping([server.address, several.address], folder))
        except NoPrometheus as missing:
            pytest.skip(str(missing))
        yield server.address, prometheus


def test_every_panel_shows_data(default_artifact: Path, tmp_path: Path) -> None:
    requests = one_of_each(Artifact.open(default_artifact))
    with watched(default_artifact, tmp_path) as (address, prometheus):
        start = time.time()
        run_closed_loop(address, requests, connections=8, seconds=SECONDS, warmup=0)
        check(prometheus, start, time.time())


def check(prometheus: Prometheus, start: float, end: float) -> None:
    for panel in read_panels():
        for expression, found in answers(prometheus, panel, start, end).items():
            assert any(series.is_finite for series in found), f"{panel['row']}, {panel['title']}: {expression}"
    rules = prometheus.rules()
    assert len(rules) > 20
    assert not [rule for rule in rules if rule["health"] != "ok"]
    firing = [rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] == "firing"]
    assert firing == ["PolyheadWatchdog"]  # which always fires, so that its silence says that no alert arrives
    exemplars = prometheus.exemplars(f"{names.REQUEST_DURATION}_bucket", start, end)
    assert exemplars
    assert all(len(labels["request_id"]) == 32 for labels in exemplars)
