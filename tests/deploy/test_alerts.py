"""Every alert fires when it should and not otherwise: `promtool` on cases whose figures were worked out by hand."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.observability.objectives import BUDGET, BURNS

HERE = Path(__file__).parent
PROMETHEUS = HERE.parents[1] / "deploy/prometheus"
CASES = HERE / "alerts_test.yaml"

Key = tuple[str, str, str]  # alert, severity, window
PAGES = {"PolyheadErrorBudgetBurn", "PolyheadLatencyBudgetBurn", "PolyheadAbsent", "PolyheadShedding"}


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    return found


def run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)  # noqa: S603 - ours
    assert done.returncode == 0, done.stdout + done.stderr


def test_rule_files_are_valid(promtool: str) -> None:
    run(promtool, "check", "rules", str(PROMETHEUS / "rules.yaml"), str(PROMETHEUS / "alerts.yaml"))


def test_alerts_fire_when_they_should_and_not_otherwise(promtool: str) -> None:
    run(promtool, "test", "rules", str(CASES))


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    alerts: set[Key] = set()
    for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]:
        alerts |= {key(rule["alert"], rule["labels"]) for rule in group["rules"]}
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test.get("alert_rule_test", ())]
    fired = {key(case["alertname"], alert["exp_labels"]) for case in cases for alert in case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert fired == alerts
    assert silent == {alert for alert, _, _ in alerts}


def test_every_alert_is_brought_about_in_a_drill() -> None:
    named = set(re.findall(r'"(Polyhead\w+)"', (HERE / "test_drills.py").read_text()))
    assert named == {rule["alert"] for rule in rules()}


def key(alert: str, labels: dict[str, Any]) -> Key:
    return alert, labels["severity"], labels.get("window", "")


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]:
        yield from group["rules"]


def test_only_what_hurts_users_now_wakes_somebody() -> None:
    assert {rule["alert"] for rule in rules() if rule["labels"]["severity"] == "page"} == PAGES


def test_every_alert_says_what_to_do_first() -> None:
    assert [rule["alert"] for rule in rules() if not rule["annotations"]["action"].endswith(".")] == []


def test_long_windows_are_recorded_seldom_and_never_seem_gone() -> None:
    seconds = {"30s": 30, "1m": 60, "2m": 120, "4m": 240}
    groups = yaml.safe_load((PROMETHEUS / "rules.yaml").read_text())["groups"]
    intervals = {group["name"].rpartition("-")[2]: seconds[group["interval"]] for group in groups}
    assert intervals["3d"] >= 120
    assert intervals["30d"] >= 240
    assert max(intervals.values()) < 300  # what Prometheus looks back for the last value of a series
    windows = {BUDGET}.union(*({burn.long, burn.short} for burn in BURNS))
    assert set(intervals) - {"rates"} == windows - {"5m"}
    raw = [rule for group in groups[1:] for rule in group["rules"] if "polyhead_request_duration" in rule["expr"]]
    assert raw == []  # only the rates of five minutes read what the instances export
