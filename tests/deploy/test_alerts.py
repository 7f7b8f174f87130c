"""Every alert fires when it should and not otherwise: `promtool` on cases whose figures were worked out by hand."""

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


def test_alerts_fire_when_they_should_and_not_otherwise(promtool: str, tmp_path: Path) -> None:
    """Without the annotations: the cases are about figures, not about words."""
    for name in ("rules.yaml", "alerts.yaml"):
        document = yaml.safe_load((PROMETHEUS / name).read_text())
        for group in document["groups"]:
            for rule in group["rules"]:
                rule.pop("annotations", None)
        (tmp_path / name).write_text(yaml.safe_dump(document))
    shutil.copy(CASES, tmp_path)
    run(promtool, "test", "rules", str(tmp_path / CASES.name))


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    alerts: set[Key] = set()
    for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]:
        alerts |= {key(rule["alert"], rule["labels"]) for rule in group["rules"]}
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test.get("alert_rule_test", ())]
    fired = {key(case["alertname"], alert["exp_labels"]) for case in cases for alert in case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert fired == alerts
    assert silent == {alert for alert, _, _ in alerts} - {"PolyheadWatchdog"}  # which is never silent


def key(alert: str, labels: dict[str, Any]) -> Key:
    return alert, labels["severity"], labels.get("window", "")


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]:
        yield from group["rules"]


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
