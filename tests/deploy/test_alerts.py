"""Every alert fires when it should and not otherwise: `promtool` on cases whose figures were worked out by hand."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)  # noqa: S603 - ours
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


def key(alert: str, labels: dict[str, Any]) -> Key:
    return alert, labels["severity"], labels.get("window", "")
