"""Recording rules: the ratios that the objectives are about, over every window that an alert looks at.

First the requests a second of the last five minutes, by what became of them. Longer windows are averages of these few
series: raw series over three days, asked for each quarter of a minute, would be most of what a Prometheus does.
"""

from collections.abc import Iterator
from typing import Any

from deploy.observability.objectives import LATENCY_SECONDS
from deploy.observability.promql import FAILED, WORK
from service.observability import metric_names as names

Document = dict[str, Any]
Rule = dict[str, str]

RATE_WINDOW = "5m"
RATE_SECONDS = 30  # between two records of it
REQUESTS = f"job:polyhead_requests:rate{RATE_WINDOW}"
FAILURES = f"job:polyhead_requests_failed:rate{RATE_WINDOW}"
ANSWERS = f"job_size:polyhead_answers:rate{RATE_WINDOW}"
SLOW_ANSWERS = f"job_size:polyhead_answers_slow:rate{RATE_WINDOW}"
INTERVALS = {"30m": "30s", "1h": "30s", "6h": "1m", "3d": "2m", "30d": "4m"}
"""How often a window is recorded. Beyond five minutes Prometheus would take the series for gone."""


def errors(window: str) -> str:
    """Name of the recorded share of POST requests that failed."""
    return f"job:polyhead_request_errors:ratio_rate{window}"


def slow(window: str) -> str:
    """Name of the recorded share of answers that took longer than those of their size may."""
    return f"job_size:polyhead_answers_slow:ratio_rate{window}"


def make_rules() -> Document:
    """The rule file."""
    groups = [{"name": "polyhead-rates", "interval": f"{RATE_SECONDS}s", "rules": list(_rates())}]
    for window, interval in INTERVALS.items():
        groups.append({"name": f"polyhead-ratios-{window}", "interval": interval, "rules": list(_ratios(window))})
    return {"groups": groups}


def _rates() -> Iterator[Rule]:
    failed = _sum(f"{names.REQUEST_DURATION}_count", WORK, FAILED)
    own_deadlines = _sum(names.CALLER_DEADLINES)
    yield _record(REQUESTS, _sum(f"{names.REQUEST_DURATION}_count", WORK))
    yield _record(FAILURES, f"clamp_min({failed} - {own_deadlines}, 0)")
    sizes = "|".join(LATENCY_SECONDS)
    answered = _sum(f"{names.ANSWER_DURATION}_count", f'size=~"{sizes}"', by="job, size")
    fast = " or ".join(
        _sum(f"{names.ANSWER_DURATION}_bucket", f'size="{size}"', f'le="{seconds}"', by="job, size")
        for size, seconds in LATENCY_SECONDS.items()
    )
    yield _record(ANSWERS, answered)
    yield _record(SLOW_ANSWERS, f"{answered} - ({fast})")
    yield _record(errors(RATE_WINDOW), f"{FAILURES} / {REQUESTS}")
    yield _record(slow(RATE_WINDOW), f"{SLOW_ANSWERS} / {ANSWERS}")


def _ratios(window: str) -> Iterator[Rule]:
    yield _record(errors(window), f"sum_over_time({FAILURES}[{window}]) / sum_over_time({REQUESTS}[{window}])")
    yield _record(slow(window), f"sum_over_time({SLOW_ANSWERS}[{window}]) / sum_over_time({ANSWERS}[{window}])")


def count(rate: str, window: str) -> str:
    """Expression of how many requests a recorded rate was in a window, however little of the window is known."""
    return f"sum_over_time({rate}[{window}]) * {RATE_SECONDS}"


def _record(name: str, expression: str) -> Rule:
    return {"record": name, "expr": expression}


def _sum(name: str, *matchers: str, by: str = "job") -> str:
    selector = f"{name}{{{','.join(matchers)}}}" if matchers else name
    return f"sum by ({by}) (rate({selector}[{RATE_WINDOW}]))"
