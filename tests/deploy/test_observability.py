"""The committed dashboard, rules and alerts against the service: names, labels, queries, runbook."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.observability.__main__ import write_files
from deploy.observability.objectives import LATENCY_SECONDS
from deploy.observability.picture import DASHBOARD, Panel, fill_in, read_panels
from deploy.observability.scrape import scraping
from service.app import create_app
from service.observability import metrics as names
from service.observability.metrics import REQUEST_BUCKETS, SIZES
from service.observability.snapshots import write_page
from service.processes.children import ParentMetrics
from service.services import Readiness
from service.settings import read_settings
from tests.deploy.tools import or_skip

DEPLOY = DASHBOARD.parents[1]
OF_OTHERS = {  # Prometheus itself, and kube-state-metrics
    "up",
    "kube_deployment_spec_replicas",
    "kube_deployment_status_replicas_unavailable",
    "kube_horizontalpodautoscaler_spec_max_replicas",
    "kube_horizontalpodautoscaler_status_current_replicas",
    "kube_pod_container_status_restarts_total",
}


def rules(name: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / name).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def panels() -> list[Panel]:
    return list(read_panels())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """Every series that the service exports, as one process or as several, with the values of its labels."""
    _, services = create_app(read_settings(["--model", str(tmp_path_factory.mktemp("model"))]), Readiness())
    labels = dict.fromkeys(names.MODEL_LABELS, "x")
    services.metrics.of_model("x").set_model(labels, {})
    page, _ = write_page("", services.metrics.registry)
    families = text_string_to_metric_families(page.decode())
    samples = [(sample.name, sample.labels) for family in families for sample in family.samples]
    for metric in asyncio.run(ParentMetrics(2, lambda: True).gather([])):
        samples += [(name, labels) for name, labels, *_ in metric["samples"]]
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, labels in samples:
        for label, value in labels.items():
            found[name][label].add(value)
        found[name]["status"] |= {"429"} if "status" in labels else set()  # has a series from the first refusal on
    return found


def expressions(panels: list[Panel]) -> Iterator[str]:
    for panel in panels:
        yield from (fill_in(target["expr"], step="1m", span="1h") for target in panel["targets"])
    yield from (rule["expr"] for name in ("rules.yaml", "alerts.yaml") for rule in rules(name))


def selectors(expression: str) -> list[Any]:
    nodes: list[Any] = []
    promql_parser.walk(promql_parser.parse(expression), nodes.append)
    return [node for node in nodes if isinstance(node, promql_parser.VectorSelector)]


def test_committed_files_are_what_the_script_writes() -> None:
    written = write_files()
    stale = [name for name, text in written.items() if (DEPLOY / name).read_text() != text]
    assert (len(written), stale) == (7, []), "run `python -m deploy.observability`"


def test_every_metric_label_and_value_named_is_exported(
    panels: list[Panel], exported: dict[str, dict[str, set[str]]]
) -> None:
    """A reason or a status that the service never has would make a panel or an alert that is silent forever."""
    recorded, places = {rule["record"] for rule in rules("rules.yaml")}, {"job", "instance", "pod"}
    for expression in expressions(panels):
        for selector in selectors(expression):
            if selector.name not in OF_OTHERS | recorded:
                assert selector.name in exported, f"{selector.name} in {expression}"
                for matcher in selector.matchers.matchers:
                    values = exported[selector.name].get(matcher.name, ())
                    is_there = any(re.fullmatch(matcher.value, value) for value in values)
                    assert is_there or matcher.name in places, expression
        for summed in re.findall(r"(?:by|on|ignoring) \(([^)]*)\)", expression):
            assert set(summed.split(", ")) <= places.union(*exported.values()), expression


def test_documentation_lists_every_metric_of_ours(exported: dict[str, dict[str, set[str]]]) -> None:
    text = (DEPLOY.parent / "docs" / "observability.md").read_text()
    names = {re.sub(r"(_bucket|_count|_sum)$", "", name) for name in exported if name.startswith("polyhead_")}
    assert set(re.findall(r"`(polyhead_[a-z_]+)[`{]", text)) == names


def test_objectives_are_buckets_and_sizes() -> None:
    assert set(LATENCY_SECONDS.values()) <= set(REQUEST_BUCKETS)
    assert set(LATENCY_SECONDS) < set(SIZES)


def test_the_overview_leads_to_the_runbook_once_it_is_published() -> None:
    text = (DEPLOY / "RUNBOOK.md").read_text()
    published = write_files("https://wiki/runbook")
    dashboard = json.loads(published["grafana/polyhead.json"])
    links = [link["url"] for panel in dashboard["panels"] for link in panel.get("links") or ()]
    sections = {heading.lower() for heading in re.findall(r"^## (\S+)$", text, flags=re.MULTILINE)}
    assert len(links) == 7
    assert {link.partition("${runbook}#")[2] for link in links} <= sections  # of a link to elsewhere: nothing
    assert [link["url"] for link in dashboard["links"]] == ["${runbook}"]
    assert {"name": "runbook", "query": "https://wiki/runbook"}.items() <= dashboard["templating"]["list"][1].items()
    assert "runbook_url: https://wiki/runbook#polyheaddown\n" in published["prometheus/alerts.yaml"]


def test_nothing_links_to_a_page_that_is_not_published() -> None:
    top = json.loads(DASHBOARD.read_text())["panels"]
    assert not [panel for one in top for panel in (one, *one.get("panels", ())) if panel.get("links")]
    assert "runbook" not in DASHBOARD.read_text()
    assert not [rule["alert"] for rule in rules("alerts.yaml") if "runbook_url" in rule["annotations"]]


def test_every_alert_has_a_section_in_the_runbook_and_no_section_is_left_over() -> None:
    alerts = {rule["alert"]: rule["annotations"]["runbook"] for rule in rules("alerts.yaml")}
    text = (DEPLOY / "RUNBOOK.md").read_text()
    assert set(re.findall(r"^## (\S+)$", text, flags=re.MULTILINE)) == set(alerts)
    for alert, place in alerts.items():
        assert place == f"deploy/RUNBOOK.md#{alert.lower()}"  # GitHub's anchor of a heading
    for anchor in re.findall(r"\]\(#([^)]*)\)", text):
        assert anchor in {alert.lower() for alert in alerts}


def test_runbook_names_panels_and_settings_that_exist(panels: list[Panel]) -> None:
    text = (DEPLOY / "RUNBOOK.md").read_text()
    flags = {f"--{name.replace('_', '-')}" for name in type(read_settings(["--model", "x"])).model_fields}
    assert set(re.findall(r"`(--[a-z-]+)[ `]", text)) <= flags
    titles = {panel["title"] for panel in panels}
    named = set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text))
    assert named - titles == {"Status, Targets"}


def test_a_prometheus_knows_our_rules_wherever_its_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("build").mkdir()
    with or_skip(scraping([], Path("build"))) as prometheus:
        assert {rule["name"] for rule in prometheus.rules() if rule["type"] == "alerting"} >= {"PolyheadShedding"}
