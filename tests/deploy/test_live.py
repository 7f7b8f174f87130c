"""A real Prometheus scrapes the real service under load: every query of the dashboard returns data."""

import time
from pathlib import Path

import pytest

from benchmarks.lib.load import Request, post, run_closed_loop
from benchmarks.lib.server import polyhead
from benchmarks.lib.texts import load_texts
from benchmarks.service.process import refused_requests
from deploy.observability.picture import ask, read_panels
from deploy.observability.scrape import Prometheus, scraping
from model.artifact import Artifact
from service.observability import metrics as names
from tests.deploy.tools import or_skip

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


def test_every_panel_shows_data(default_artifact: Path, tmp_path: Path) -> None:
    """Of a service, and of one of several processes, which has metrics of its own."""
    requests = one_of_each(Artifact.open(default_artifact))
    processes = {"POLYHEAD_PROCESSES": "2", "POLYHEAD_WORKERS": "2"}
    with (
        polyhead(default_artifact, {}) as server,
        polyhead(default_artifact, processes) as several,
        or_skip(scraping([server.address, several.address], tmp_path)) as prometheus,
    ):
        start = time.time()
        run_closed_loop(server.address, requests, connections=8, seconds=12.0, warmup=0)
        check(prometheus, start, time.time())


def check(prometheus: Prometheus, start: float, end: float) -> None:
    for panel in read_panels():
        for target in panel["targets"]:
            found = ask(prometheus, target, start, end, step="5s")
            assert any(series.is_finite for series in found), f"{panel['row']}, {panel['title']}: {target['expr']}"
    rules = prometheus.rules()
    assert len(rules) > 20
    assert not [rule for rule in rules if rule["health"] != "ok"]
    firing = [rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] == "firing"]
    assert firing == ["PolyheadWatchdog"]  # which always fires, so that its silence says that no alert arrives
    exemplars = prometheus.exemplars(f"{names.REQUEST_DURATION}_bucket", start, end)
    assert exemplars
    assert all(len(labels["request_id"]) == 32 for labels in exemplars)
