"""All alerts, as a rule file has them: the alerts of `alerts.yaml`, and alerts on how fast an error budget burns.

Each has a section in the runbook.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from deploy.observability.objectives import (
    ACCEPTANCE,
    AVAILABILITY,
    BURNS,
    ERROR_RATIO,
    FAILURES,
    LATENCY,
    LEAST_REQUESTS,
    REFUSAL_RATIO,
    REFUSALS,
    SLOW_ANSWERS,
    SLOW_RATIO,
    Document,
    count,
)

RUNBOOK = "deploy/RUNBOOK.md"  # in this repository
ALERTS = Path(__file__).with_name("alerts.yaml")
BUDGETS = (  # alert, speeds, recorded ratio and its part, budget, what burns it, the first thing to do
    (
        "PolyheadErrorBudgetBurn",
        BURNS,
        ERROR_RATIO,
        FAILURES,
        1 - AVAILABILITY,
        "{{ $labels.job }}: errors (5xx)",
        "Look which 5xx it is; after a release or a new model, roll back.",
    ),
    (
        "PolyheadLatencyBudgetBurn",
        BURNS,
        SLOW_RATIO,
        SLOW_ANSWERS,
        1 - LATENCY,
        "{{ $labels.job }}: slow answers to {{ $labels.size }} requests",
        "Look where the time goes; if it is the queue, add replicas.",
    ),
    (
        "PolyheadRefusalBudgetBurn",
        BURNS[-1:],  # a flood of refusals pages as PolyheadShedding
        REFUSAL_RATIO,
        REFUSALS,
        1 - ACCEPTANCE,
        "{{ $labels.job }}: refused requests (429)",
        "Add replicas, or raise the most that the autoscaler may have.",
    ),
)


def make_alerts(runbook_url: str | None = None) -> Document:
    """The rule file; every alert names its section of the runbook, with a link if the runbook is published."""
    name_of_place, place = ("runbook_url", runbook_url) if runbook_url else ("runbook", RUNBOOK)
    groups: dict[str, list[Any]] = {"polyhead-budgets": [*_burns()], **yaml.safe_load(ALERTS.read_text("utf-8"))}
    rules = {name: [_rule(given) for given in alerts] for name, alerts in groups.items()}
    for rule in (rule for group in rules.values() for rule in group):
        rule["annotations"][name_of_place] = f"{place}#{rule['alert'].lower()}"
    return {"groups": [{"name": name, "rules": group} for name, group in rules.items()]}


def make_prometheus_rule(*documents: Document) -> Document:
    """Rule files as the Prometheus operator takes them: one PrometheusRule that holds the groups of all."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "polyhead"},
        "spec": {"groups": [group for document in documents for group in document["groups"]]},
    }


def _burns() -> Iterator[dict[str, str]]:
    for alert, burns, ratio, part, budget, what, action in BUDGETS:
        for burn in burns:
            limit = f"{burn.factor * budget:.6g}"
            both = f"{ratio}{burn.long} > {limit} and {ratio}{burn.short} > {limit}"
            yield {
                "alert": alert,
                "expr": f"{both} and {count(part, burn.long)} >= {LEAST_REQUESTS}",
                "for": burn.wait,
                "severity": burn.severity,
                "window": burn.long,
                "summary": f"{what} use up the budget of 30 days {burn.factor:g} times too fast",
                "description": f"{{{{ $value | humanizePercentage }}}} over {burn.long}; "
                f"{budget:.2%} are within the objective.",
                "action": action,
            }


def _rule(given: dict[str, str]) -> dict[str, Any]:
    """An alert as Prometheus has it, of one as `alerts.yaml` has it."""
    return {
        **{name: given[name] for name in ("alert", "expr", "for")},
        "labels": {name: given[name] for name in ("severity", "window") if name in given},
        "annotations": {name: given[name] for name in ("summary", "description", "action")},
    }
