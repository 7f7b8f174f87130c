"""The objectives, the recording rules of their ratios over every window that an alert looks at, and all alerts.

Alerts on how fast the error budget of 30 days burns follow from the objectives: a long window to be sure, a short one
to end soon after the trouble does (Beyer et al., The Site Reliability Workbook, chapter 5, table 5-8). All others stand
in `alerts.yaml`. Each alert has a section in the runbook.

The rules first record the requests a second of the last five minutes, by what became of them. Longer windows are
averages of these few series: raw series over three days, asked for each quarter of a minute, would be most of what a
Prometheus does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from deploy.observability.panels import FAILED, NOT_REFUSED, REFUSED, WORK
from service.observability import metrics as names

AVAILABILITY = 0.999
"""Share of accepted POST requests that are not answered 5xx; a caller whose own deadline passed is not failed."""
ACCEPTANCE = 0.99
"""Share of all POST requests that are accepted: not refused with 429.

A refused request says when to come again and costs its caller that time, so it is no error; but it is no answer either,
and a service that always refuses one of twenty has too few replicas.
"""
LATENCY = 0.99  # share of POST requests of a size, answered 200, that took at most
LATENCY_SECONDS = {"small": 1.0, "medium": 10.0}
"""Seconds by the class of a request's tokens (`service.observability.metrics.SIZES`), each a bucket of the durations.

A queue may be half a second (--max-queue-delay), and sixteen times the request's own run besides. Large requests, of
more than 8,192 tokens, have no objective of their own: 65,536 tokens take five seconds of two cores, however well the
service is. What bounds them is --request-timeout, beyond which they are 504 and count as errors.
"""

LEAST_REQUESTS = 10
"""Failed or slow requests in the long window below which no alert burns: one of ten in a quiet hour is no trend."""


class Burn(NamedTuple):
    """One speed at which the budget burns: both windows have to, for as long as `wait` says."""

    factor: float  # times the speed that just uses the budget up in 30 days
    long: str
    short: str
    wait: str
    severity: Literal["page", "ticket"]  # the first wakes somebody, the second is for the next working day


BURNS = (Burn(14.4, "1h", "5m", "2m", "page"), Burn(6, "6h", "30m", "15m", "page"), Burn(1, "3d", "6h", "1h", "ticket"))
BUDGET = "30d"


Document = dict[str, Any]
Rule = dict[str, str]

RATE_WINDOW = "5m"
RATE_SECONDS = 30  # between two records of it
REQUESTS = f"job:polyhead_requests:rate{RATE_WINDOW}"
ACCEPTED = f"job:polyhead_requests_accepted:rate{RATE_WINDOW}"
REFUSALS = f"job:polyhead_requests_refused:rate{RATE_WINDOW}"
FAILURES = f"job:polyhead_requests_failed:rate{RATE_WINDOW}"
ANSWERS = f"job_size:polyhead_answers:rate{RATE_WINDOW}"
SLOW_ANSWERS = f"job_size:polyhead_answers_slow:rate{RATE_WINDOW}"
# Recorded shares, behind whose name the window stands: of accepted POST requests those that failed, of all those that
# were refused, of answers those that took longer than their size may take. Each with its part and its whole.
ERROR_RATIO = "job:polyhead_request_errors:ratio_rate"
REFUSAL_RATIO = "job:polyhead_request_refusals:ratio_rate"
SLOW_RATIO = "job_size:polyhead_answers_slow:ratio_rate"
RATIOS = ((ERROR_RATIO, FAILURES, ACCEPTED), (REFUSAL_RATIO, REFUSALS, REQUESTS), (SLOW_RATIO, SLOW_ANSWERS, ANSWERS))
INTERVALS = {"30m": "30s", "1h": "30s", "6h": "1m", "3d": "2m", "30d": "4m"}
"""How often a window is recorded. Beyond five minutes Prometheus would take the series for gone."""


def make_rules() -> Document:
    """The rule file."""
    groups = [{"name": "polyhead-rates", "interval": f"{RATE_SECONDS}s", "rules": list(_rates())}]
    for window, interval in INTERVALS.items():
        ratios = [
            _record(f"{ratio}{window}", f"sum_over_time({part}[{window}]) / sum_over_time({whole}[{window}])")
            for ratio, part, whole in RATIOS
        ]
        groups.append({"name": f"polyhead-ratios-{window}", "interval": interval, "rules": ratios})
    return {"groups": groups}


def _rates() -> Iterator[Rule]:
    requests = f"{names.REQUEST_DURATION}_count"
    yield _record(REQUESTS, _sum(requests, WORK))
    yield _record(ACCEPTED, _sum(requests, WORK, NOT_REFUSED))
    yield _record(REFUSALS, f"{_sum(requests, WORK, REFUSED)} or 0 * {REQUESTS}")  # no series before the first one
    yield _record(FAILURES, f"clamp_min({_sum(requests, WORK, FAILED)} - {_sum(names.CALLER_DEADLINES)}, 0)")
    sizes = "|".join(LATENCY_SECONDS)
    answered = _sum(f"{names.ANSWER_DURATION}_count", f'size=~"{sizes}"', by="job, size")
    fast = " or ".join(
        _sum(f"{names.ANSWER_DURATION}_bucket", f'size="{size}"', f'le="{seconds}"', by="job, size")
        for size, seconds in LATENCY_SECONDS.items()
    )
    yield _record(ANSWERS, answered)
    yield _record(SLOW_ANSWERS, f"{answered} - ({fast})")
    for ratio, part, whole in RATIOS:
        yield _record(f"{ratio}{RATE_WINDOW}", f"{part} / {whole}")


def _record(name: str, expression: str) -> Rule:
    return {"record": name, "expr": expression}


def _sum(name: str, *matchers: str, by: str = "job") -> str:
    selector = f"{name}{{{','.join(matchers)}}}" if matchers else name
    return f"sum by ({by}) (rate({selector}[{RATE_WINDOW}]))"


RUNBOOK = "deploy/RUNBOOK.md"  # in this repository
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
    given = yaml.safe_load(Path(__file__).with_name("alerts.yaml").read_text("utf-8"))
    groups = []
    for name, alerts in {"polyhead-budgets": _burns(), **given}.items():
        rules = [
            {
                **{part: one[part] for part in ("alert", "expr", "for")},
                "labels": {label: one[label] for label in ("severity", "window") if label in one},
                "annotations": {text: one[text] for text in ("summary", "description", "action")}
                | {name_of_place: f"{place}#{one['alert'].lower()}"},
            }
            for one in alerts
        ]
        groups.append({"name": name, "rules": rules})
    return {"groups": groups}


def _burns() -> Iterator[dict[str, str]]:
    for alert, burns, ratio, part, budget, what, action in BUDGETS:
        for burn in burns:
            limit = f"{burn.factor * budget:.6g}"
            both = f"{ratio}{burn.long} > {limit} and {ratio}{burn.short} > {limit}"
            requests = f"sum_over_time({part}[{burn.long}]) * {RATE_SECONDS}"  # however little of the window is known
            yield {
                "alert": alert,
                "expr": f"{both} and {requests} >= {LEAST_REQUESTS}",
                "for": burn.wait,
                "severity": burn.severity,
                "window": burn.long,
                "summary": f"{what} use up the budget of 30 days {burn.factor:g} times too fast",
                "description": f"{{{{ $value | humanizePercentage }}}} over {burn.long}; "
                f"{budget:.2%} are within the objective.",
                "action": action,
            }


def describe_objectives() -> str:
    """The objectives as a table in Markdown, for the pages that name them."""
    failed = "not answered 5xx (504 by a caller's own deadline aside)"
    rows = [
        ("POST requests that were not refused", AVAILABILITY, failed),
        ("POST requests", ACCEPTANCE, "not refused with 429"),
    ]
    for size, seconds in LATENCY_SECONDS.items():
        of = f"POST requests of up to {names.SIZES[size]:,} tokens, answered 200"
        rows.append((of, LATENCY, f"answered within {seconds:g} s"))
    lines = [f"| {of} | {100 * share:g} % | {what} |\n" for of, share, what in rows]
    return "| of 30 days' | at least | are |\n|---|---|---|\n" + "".join(lines)
