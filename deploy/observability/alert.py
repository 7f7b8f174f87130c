"""One alert as a rule file has it, and the labels that all alerts select by."""

from typing import Any, Literal

JOB = 'job=~"(.*/)?polyhead"'  # the scrape job, or the namespace and name of a PodMonitor

Rule = dict[str, Any]


def make_alert(
    name: str,
    expression: str,
    *,
    wait: str,
    severity: Literal["page", "ticket"],
    summary: str,
    text: str,
    action: str,
    labels: dict[str, str] | None = None,
) -> Rule:
    """A rule.

    Args:
        name: of the alert.
        expression: PromQL; each series of its result is an alert.
        wait: how long it has to hold.
        severity: `page` wakes somebody: users are hurt now. `ticket` is for the next working day.
        summary: what is wrong with whom, in a line.
        text: what the value says.
        action: the first thing to do.
        labels: further ones.
    """
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity, **(labels or {})},
        "annotations": {"summary": summary, "description": text, "action": action},
    }
