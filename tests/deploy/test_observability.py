"""The committed dashboard, rules and alerts against the service: names, labels, queries, runbook."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.observability.__main__ import main, write_files
from deploy.observability.objectives import LATENCY_SECONDS
from deploy.observability.shown import DASHBOARD, ShownPanel, read_panels
from deploy.observability.unused import UNUSED
from service.app import create_app
from service.observability.metrics import REQUEST_BUCKETS
from service.readiness import Readiness
from service.settings import read_settings
from tests.deploy.tools import run, tool

DEPLOY = DASHBOARD.parents[1]
ROWS = [
    *("Health", "Latency", "Traffic", "Batching and padding", "Queue and saturation", "Attention", "Instances"),
]
OF_PROMETHEUS = {"up"}


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / name).read_text())
    return document


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for group in load(name)["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def panels() -> list[ShownPanel]:
    return list(read_panels())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every series that the service exports, with its labels."""
    settings = read_settings(["--model", str(tmp_path_factory.mktemp("model"))])
    _, services = create_app(settings, Readiness())
    model = dict.fromkeys(("model", "source", "revision", "precision", "weights_sha256", "provider"), "x")
    services.metrics.set_model(model, workers=1, intra_op_threads=1, load_seconds=1)
    page, _ = services.metrics.write("")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions(panels: list[ShownPanel]) -> Iterator[str]:
    for panel in panels:
        yield from (target.fill_in(step="1m", span="1h") for target in panel.targets)
    yield from (rule["expr"] for name in ("rules.yaml", "alerts.yaml") for rule in rules(name))


def selectors(expression: str) -> list[Any]:
    found = []
    promql_parser.walk(
        promql_parser.parse(expression),
        lambda node: found.append(node) if isinstance(node, promql_parser.VectorSelector) else None,
    )
    return found


@pytest.mark.parametrize("name", write_files())
def test_committed_files_are_what_the_script_writes(name: str) -> None:
    assert (DEPLOY / name).read_text() == write_files()[name], "run `python -m deploy.observability`"


def test_runbook_can_stand_elsewhere() -> None:
    alerts = yaml.safe_load(write_files("https://wiki/runbook")["prometheus/alerts.yaml"])
    urls = [rule["annotations"]["runbook_url"] for group in alerts["groups"] for rule in group["rules"]]
    assert "https://wiki/runbook#polyheaddown" in urls
    assert all(url.startswith("https://wiki/runbook#") for url in urls)


def test_script_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "--runbook-url" in capsys.readouterr().out


def test_every_metric_named_is_exported_with_those_labels(
    panels: list[ShownPanel], exported: dict[str, set[str]]
) -> None:
    recorded = {rule["record"] for rule in rules("rules.yaml")}
    for expression in expressions(panels):
        for selector in selectors(expression):
            if selector.name not in OF_PROMETHEUS | recorded:
                assert selector.name in exported, f"{selector.name} in {expression}"
                labels = {matcher.name for matcher in selector.matchers.matchers} - {"job", "instance"}
                assert labels <= exported[selector.name], expression


def test_every_label_summed_by_exists(panels: list[ShownPanel], exported: dict[str, set[str]]) -> None:
    known = {"job", "instance"}.union(*exported.values())
    for expression in expressions(panels):
        for labels in re.findall(r"(?:by|on|ignoring) \(([^)]*)\)", expression):
            assert set(labels.split(", ")) <= known, expression


def test_every_metric_is_used_or_listed_as_not(panels: list[ShownPanel], exported: dict[str, set[str]]) -> None:
    used = {selector.name for expression in expressions(panels) for selector in selectors(expression)}
    families = {re.sub(r"(_bucket|_count|_sum)$", "", name) for name in exported}
    used_families = {re.sub(r"(_bucket|_count|_sum)$", "", name) for name in used}
    assert families - used_families == set(UNUSED)
    assert all(UNUSED.values())


def test_documentation_lists_every_metric_of_ours(exported: dict[str, set[str]]) -> None:
    text = (DEPLOY.parent / "docs" / "observability.md").read_text()
    names = {re.sub(r"(_bucket|_count|_sum)$", "", name) for name in exported if name.startswith("polyhead_")}
    assert set(re.findall(r"`(polyhead_[a-z_]+)[`{]", text)) == names


def test_objective_is_a_bucket(exported: dict[str, set[str]]) -> None:
    assert LATENCY_SECONDS in REQUEST_BUCKETS


def test_label_values_in_queries_occur(panels: list[ShownPanel], tmp_path: Path) -> None:
    """A reason or a status that the service never has would make a panel or an alert that is silent for ever."""
    _, services = create_app(read_settings(["--model", str(tmp_path)]), Readiness())
    values: dict[str, set[str]] = {}
    for family in services.metrics.registry.collect():
        for sample in family.samples:
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
    for expression in expressions(panels):
        for selector in selectors(expression):
            for matcher in selector.matchers.matchers:
                if matcher.name not in ("job", "instance"):
                    assert any(re.fullmatch(matcher.value, value) for value in values[matcher.name]), expression


def test_rows_are_the_ones_asked_for(panels: list[ShownPanel]) -> None:
    assert list(dict.fromkeys(panel.row for panel in panels)) == ROWS


def test_panels_are_described_and_named_once(panels: list[ShownPanel]) -> None:
    assert all(panel.description.endswith((".", "?")) for panel in panels)
    assert not [title for title, count in Counter((panel.row, panel.title) for panel in panels).items() if count > 1]


def test_panels_fill_their_rows_and_overlap_nowhere() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        assert columns.stop <= 24, panel["title"]
        cells = {(column, line) for column in columns for line in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    lines = Counter(line for _, line in taken)
    assert set(lines.values()) == {24}


def test_panels_have_numbers_of_their_own() -> None:
    numbers = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert numbers == list(range(1, len(numbers) + 1))


def test_variables() -> None:
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    assert [variable["name"] for variable in variables] == ["datasource", "job", "instance"]


def test_every_alert_has_a_section_in_the_runbook_and_no_section_is_left_over() -> None:
    alerts = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules("alerts.yaml")}
    text = (DEPLOY / "RUNBOOK.md").read_text()
    assert set(re.findall(r"^## (\S+)$", text, flags=re.MULTILINE)) == set(alerts)
    for alert, url in alerts.items():
        assert url == f"deploy/RUNBOOK.md#{alert.lower()}"  # GitHub's anchor of a heading
    for anchor in re.findall(r"\]\(#([^)]*)\)", text):
        assert anchor in {alert.lower() for alert in alerts}


def test_runbooks_ways_to_read_the_log_pass_over_what_is_no_json() -> None:
    jq = tool("jq", "Debian's package jq brings it")
    found = re.findall(r"\bjq ((?:-R )?)'([^']+)'", (DEPLOY / "RUNBOOK.md").read_text())
    lines = ['{"request_id": "...", "status": 500}', "python -m service: cannot load", '{"message": "listening"}', ""]
    assert len(found) == 2
    for option, program in found:
        shown = run(jq, "-c", *option.split(), program, data="\n".join(lines))
        assert [json.loads(line) for line in shown.splitlines()] == [json.loads(lines[0])]


def test_runbook_names_panels_and_settings_that_exist(panels: list[ShownPanel]) -> None:
    text = (DEPLOY / "RUNBOOK.md").read_text()
    flags = {f"--{name.replace('_', '-')}" for name in type(read_settings(["--model", "x"])).model_fields}
    assert set(re.findall(r"`(--[a-z-]+)[ `]", text)) <= flags
    titles = {panel.title for panel in panels}
    named = set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text))
    assert named - titles == {"Status, Targets"}
