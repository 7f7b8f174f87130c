"""Every alert fires when it should and not otherwise: `promtool` on cases whose figures were worked out by hand."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from benchmarks.lib.load import DROPPED, Tally
from deploy.observability.night import ACTS, Night, count, describe_alerts, required_alerts
from deploy.observability.scrape import Prometheus, Series
from tests.deploy.tools import DEPLOY, run, tool

PROMETHEUS = DEPLOY / "prometheus"
TIMES = {act.name: (100.0 * number, 100.0 * (number + 1)) for number, act in enumerate(ACTS)}
CASES = Path(__file__).with_name("alerts_test.yaml")

Key = tuple[str, str, str]  # alert, severity, window


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
