"""The committed dashboard, rules and alerts: names, labels, queries, runbook, types, pictures, and when alerts fire."""

import asyncio
import json
import math
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import promql_parser
import pytest
import yaml
from PIL import Image
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.lib.load import DROPPED, Tally
from deploy.observability.__main__ import write_files
from deploy.observability.demo import main
from deploy.observability.night import ACTS, Night, count, describe_alerts, required_alerts
from deploy.observability.picture import DASHBOARD, Panel, draw, fill_in, read_panels
from deploy.observability.scrape import Prometheus, Series, scraping
from service.app import create_app
from service.observability import metrics as names
from service.processes.children import ParentMetrics
from service.services import Readiness
from service.settings import read_settings
from tests.deploy.tools import DEPLOY, install_packages, or_skip, run, tool

PROMETHEUS = DEPLOY / "prometheus"
RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text()
SECTIONS = set(re.findall(r"^## (\S+)$", RUNBOOK, flags=re.MULTILINE))
OF_OTHERS = {  # Prometheus itself, and kube-state-metrics
    "up",
    "kube_deployment_spec_replicas",
    "kube_deployment_status_replicas_unavailable",
    "kube_horizontalpodautoscaler_spec_max_replicas",
    "kube_horizontalpodautoscaler_status_current_replicas",
    "kube_pod_container_status_restarts_total",
}


def rules(name: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / name).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def panels() -> list[Panel]:
    return list(read_panels())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """Every series that the service exports, as one process or as several, with the values of its labels."""
    _, services = create_app(read_settings(["--model", str(tmp_path_factory.mktemp("model"))]), Readiness())
    labels = dict.fromkeys(names.MODEL_LABELS, "x")
    services.metrics.of_model("x").set_model(labels)
    families = text_string_to_metric_families(generate_latest(services.metrics.registry).decode())
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


def test_the_overview_leads_to_the_runbook_once_it_is_published() -> None:
    published = write_files("https://wiki/runbook")
    dashboard = json.loads(published["grafana/polyhead.json"])
    links = [link["url"] for panel in dashboard["panels"] for link in panel.get("links") or ()]
    assert len(links) == 7
    # A link to elsewhere has no part behind the runbook's.
    assert {link.partition("${runbook}#")[2] for link in links} <= {section.lower() for section in SECTIONS}
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
    assert set(alerts) == SECTIONS
    for alert, place in alerts.items():
        assert place == f"deploy/RUNBOOK.md#{alert.lower()}"  # GitHub's anchor of a heading
    assert set(re.findall(r"\]\(#([^)]*)\)", RUNBOOK)) <= {alert.lower() for alert in alerts}


def test_runbook_names_panels_and_settings_that_exist(panels: list[Panel]) -> None:
    flags = {f"--{name.replace('_', '-')}" for name in type(read_settings(["--model", "x"])).model_fields}
    assert set(re.findall(r"`(--[a-z-]+)[ `]", RUNBOOK)) <= flags
    named = set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", RUNBOOK))
    assert named - {panel["title"] for panel in panels} == {"Status, Targets"}


def test_a_prometheus_knows_our_rules_wherever_its_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("build").mkdir()
    with or_skip(scraping([], Path("build"))) as prometheus:
        assert {rule["name"] for rule in prometheus.rules() if rule["type"] == "alerting"} >= {"PolyheadShedding"}


def first(dashboard: dict[str, Any], kind: str) -> dict[str, Any]:
    panels = (panel for one in dashboard["panels"] for panel in (one, *one.get("panels", ())))
    return next(panel for panel in panels if panel["type"] == kind)


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "version is a text": lambda dashboard: dashboard.update(schemaVersion="41"),
    "no such kind of panel": lambda dashboard: first(dashboard, "heatmap").update(type="heatmapp"),
    "no such field of a panel": lambda dashboard: first(dashboard, "stat").update(titel="x"),
    "no such option": lambda dashboard: first(dashboard, "stat")["options"].update(colourMode="value"),
    "no such mode": lambda dashboard: first(dashboard, "timeseries")["fieldConfig"]["defaults"]["custom"].update(
        stacking={"mode": "stacked"}
    ),
    "no such field of a query": lambda dashboard: first(dashboard, "table")["targets"][0].update(query="up"),
    "no description": lambda dashboard: first(dashboard, "table").pop("description"),
}


@pytest.mark.slow
def test_grafanas_types_take_the_dashboard_and_refuse_what_is_wrong(tmp_path: Path) -> None:
    node = install_packages(Path(__file__).with_name("grafana"), tmp_path)
    for number, change in enumerate(WRONG.values()):
        dashboard = json.loads(DASHBOARD.read_text())
        change(dashboard)
        (tmp_path / f"wrong-{number}.json").write_text(json.dumps(dashboard))
    wrong = [str(tmp_path / f"wrong-{number}.json") for number in range(len(WRONG))]
    command = [node, str(tmp_path / "check.mjs"), str(DASHBOARD), *wrong]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)  # noqa: S603 - our own
    assert (done.returncode, done.stderr) == (1, "")
    refused = {line.partition(".json")[0] + ".json" for line in done.stdout.splitlines()}
    assert refused == set(wrong), done.stdout


INSTANCE = {"instance": "a:8000", "model": "m", "precision": "int8", "le": "+Inf"}
KINDS: tuple[tuple[float, ...], ...] = ((1.0, 2.0, 4e12), (0.0, math.nan), (math.nan,), ())


def made_up(asked: list[str]) -> Prometheus:
    """Answers with something else every time: huge, nothing but zeros, no number, nothing at all."""

    def query(expression: str, at: float) -> list[Series]:
        asked.append(expression)
        return [Series(INSTANCE, [at], [value]) for value in KINDS[len(asked) % len(KINDS)][-1:]]

    def query_range(expression: str, start: float, end: float, step: float) -> list[Series]:
        asked.append(expression)
        found = KINDS[len(asked) % len(KINDS)]
        times = np.arange(start, end, step)[: len(found)].tolist()
        edges = ("0.1", "1.0", "+Inf") if found else ()
        return [Series({**INSTANCE, "le": le}, times, [one * (1 + n) for one in found]) for n, le in enumerate(edges)]

    return Mock(spec=Prometheus, query=query, query_range=query_range)


def test_every_panel_is_drawn_whatever_its_data(tmp_path: Path) -> None:
    asked: list[str] = []
    panels, start = list(read_panels()), 1_700_000_000.0
    draw(panels, made_up(asked), start, start + 240, tmp_path / "made-up.png")
    assert len(asked) == sum(len(panel["targets"]) for panel in panels)
    assert not [expression for expression in asked if "$" in expression]
    with Image.open(tmp_path / "made-up.png") as picture:
        assert picture.width == 1200
        assert len(np.unique(np.asarray(picture))) > 5


def test_the_demonstration_without_an_artifact_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["demo.py", "--model", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"demo.py: {tmp_path} holds no manifest.json")


TIMES = {act.name: (100.0 * number, 100.0 * (number + 1)) for number, act in enumerate(ACTS)}
CASES = Path(__file__).with_name("alerts_test.yaml")


def test_alerts_fire_when_they_should_and_not_otherwise(tmp_path: Path) -> None:
    """Without the annotations: the cases are about figures, not about words."""
    for name in ("rules.yaml", "alerts.yaml"):
        document = yaml.safe_load((PROMETHEUS / name).read_text())
        for group in document["groups"]:
            for rule in group["rules"]:
                rule.pop("annotations", None)
        (tmp_path / name).write_text(yaml.safe_dump(document))
    shutil.copy(CASES, tmp_path)
    run(tool("promtool", "Debian's package prometheus brings it"), "test", "rules", tmp_path / CASES.name)


RESTARTED = 'process_start_time_seconds{job="ns/polyhead", instance="10.0.0.1:8001", pod="polyhead-1"}'
SUMMARIES = [  # an alert, the series of a case, when it fires with which labels, and whom its summary names
    ("PolyheadAbsent", 'other{job="x"}', "1x9", "9m", {}, "polyhead: no instance takes traffic"),
    ("PolyheadAbsent", 'up{job="polyhead"}', "0x9", "9m", {"job": "polyhead"}, "polyhead: no instance takes traffic"),
    (
        *("PolyheadRestarts", RESTARTED, "1 2 3 4", "3m"),
        {"job": "ns/polyhead", "instance": "10.0.0.1:8001", "pod": "polyhead-1"},
        "polyhead-1 keeps restarting",
    ),
]


@pytest.mark.parametrize(("alert", "series", "values", "time", "labels", "summary"), SUMMARIES)
def test_a_summary_names_one_thing(
    tmp_path: Path, alert: str, series: str, values: str, time: str, labels: dict[str, str], summary: str
) -> None:
    (rule,) = (rule for rule in rules("alerts.yaml") if rule.get("alert") == alert)
    rule["annotations"] = {"summary": rule["annotations"]["summary"]}
    expected = {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": {"summary": summary}}
    case = {
        "interval": "1m",
        "input_series": [{"series": series, "values": values}],
        "alert_rule_test": [{"eval_time": time, "alertname": alert, "exp_alerts": [expected]}],
    }
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [rule]}]}))
    (tmp_path / "case.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [case]}))
    run(tool("promtool", "Debian's package prometheus brings it"), "test", "rules", tmp_path / "case.yaml")


def test_the_night_names_alerts_that_an_act_did_not_bring_about_and_those_that_it_should_have() -> None:
    fired = [("PolyheadDown", 20.0), ("PolyheadShedding", TIMES["flood"][0] + 5), ("PolyheadProcessRestarts", 20.0)]
    series = [Series({"alertname": name, "severity": "page"}, [at, at + 1], [1, 1]) for name, at in fired]
    prometheus = Mock(spec=Prometheus, query_range=lambda *_: series)
    rows = describe_alerts(prometheus, TIMES, {act.name: act.alerts for act in ACTS}).rows
    verdicts = {(row["alert"], row["act"]): row["verdict"] for row in rows}
    assert verdicts == {
        ("PolyheadDown", "calm"): "UNEXPECTED",
        ("PolyheadShedding", "flood"): "",
        ("PolyheadProcessRestarts", "calm"): "UNEXPECTED",
        ("PolyheadProcessRestarts", "processes keep dying"): "MISSING",
        ("PolyheadQueueSaturated", "flood"): "MISSING",
    }


@pytest.mark.parametrize(("slow", "is_required"), [(140, False), (150, True)])
def test_the_alert_for_slow_answers_is_required_of_a_flood_that_made_them_slow(slow: int, is_required: bool) -> None:
    waits = [1.1] * slow + [0.9] * (1000 - slow)
    before = (TIMES["calm"][0], Tally(5.0, latencies=[2.0] * 1000))
    answers = {"steady": [before], "flood": [(TIMES["flood"][0], Tally(5.0, latencies=waits))]}
    required = required_alerts(Mock(spec=Night, answers=answers), TIMES)
    assert ("PolyheadLatencyBudgetBurn" in required["flood"]) == is_required
    assert required["calm"] == frozenset()


def test_a_request_of_the_night_that_is_refused_without_a_time_to_come_again_is_lost() -> None:
    tally = Tally(5.0, statuses=Counter({200: 7, 429: 3, 500: 1, DROPPED: 1}), refused=3, with_retry_after=2)
    assert count([tally, tally]) == {"sent": 24, "answered": 14, "refused": 4, "lost": 6}


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    alerts = {key(rule["alert"], rule["labels"]) for rule in rules("alerts.yaml")}
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test.get("alert_rule_test", ())]
    fired = {key(case["alertname"], alert["exp_labels"]) for case in cases for alert in case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert fired == alerts
    assert silent == {alert for alert, _, _ in alerts} - {"PolyheadWatchdog"}  # which is never silent


def key(alert: str, labels: dict[str, Any]) -> tuple[str, str, str]:
    """Alert, severity and window."""
    return alert, labels["severity"], labels.get("window", "")
