"""All alerts. Each has a section in the runbook that its `runbook_url` leads to."""

from deploy.observability.alert import Rule, make_alert
from deploy.observability.instance_alerts import instance_alerts
from deploy.observability.load_alerts import load_alerts
from deploy.observability.objectives import AVAILABILITY, BURNS, LATENCY, LEAST_REQUESTS, Burn
from deploy.observability.rules import FAILURES, SLOW_ANSWERS, Document, count, errors, slow

RUNBOOK = "deploy/RUNBOOK.md"  # in this repository; --runbook-url says where people can read it


def make_alerts(runbook: str = RUNBOOK) -> Document:
    """The rule file; every alert leads to its section of the runbook."""
    budgets = [*map(_errors_burn, BURNS), *map(_latency_burns, BURNS)]
    groups = {
        "polyhead-budgets": budgets,
        "polyhead-instances": instance_alerts(),
        "polyhead-load": load_alerts(),
    }
    for rules in groups.values():
        for rule in rules:
            rule["annotations"]["runbook_url"] = f"{runbook}#{rule['alert'].lower()}"
    return {"groups": [{"name": name, "rules": rules} for name, rules in groups.items()]}


def _errors_burn(burn: Burn) -> Rule:
    return _burns(
        "PolyheadErrorBudgetBurn",
        burn,
        ratios=(errors(burn.long), errors(burn.short)),
        least=count(FAILURES, burn.long),
        budget=1 - AVAILABILITY,
        summary="{{ $labels.job }}: errors (5xx)",
        action="Look which 5xx it is; after a release or a new model, roll back.",
    )


def _latency_burns(burn: Burn) -> Rule:
    return _burns(
        "PolyheadLatencyBudgetBurn",
        burn,
        ratios=(slow(burn.long), slow(burn.short)),
        least=count(SLOW_ANSWERS, burn.long),
        budget=1 - LATENCY,
        summary="{{ $labels.job }}: slow answers to {{ $labels.size }} requests",
        action="Look where the time goes; where it is the queue, add replicas.",
    )


def _burns(
    alert: str, burn: Burn, *, ratios: tuple[str, str], least: str, budget: float, summary: str, action: str
) -> Rule:
    limit = f"{burn.factor * budget:.6g}"
    both = " and ".join(f"{ratio} > {limit}" for ratio in ratios)
    return make_alert(
        alert,
        f"{both} and {least} >= {LEAST_REQUESTS}",
        wait=burn.wait,
        severity=burn.severity,
        summary=f"{summary} use up the budget of 30 days {burn.factor:g} times too fast",
        text=f"{{{{ $value | humanizePercentage }}}} over {burn.long}; {budget:.2%} are within the objective.",
        action=action,
        labels={"window": burn.long},
    )
