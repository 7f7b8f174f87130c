"""Recording rules: the two ratios that the objectives are about, over every window that an alert looks at."""

from typing import Any

from deploy.observability.objectives import LATENCY_SECONDS, WINDOWS
from deploy.observability.promql import ANSWERED, FAILED, WORK
from service.observability import metric_names as names

Document = dict[str, Any]

_REQUESTS = f"{names.REQUEST_DURATION}_count"
_BUCKETS = f"{names.REQUEST_DURATION}_bucket"


def errors(window: str) -> str:
    """Name of the recorded share of POST requests answered 5xx."""
    return f"job:polyhead_request_errors:ratio_rate{window}"


def slow(window: str) -> str:
    """Name of the recorded share of POST requests answered 200 that took too long."""
    return f"job:polyhead_requests_slow:ratio_rate{window}"


def make_rules() -> Document:
    """The rule file."""
    rules = []
    for window in WINDOWS:
        failed, all_requests = _sum(_REQUESTS, window, WORK, FAILED), _sum(_REQUESTS, window, WORK)
        fast = _sum(_BUCKETS, window, WORK, ANSWERED, f'le="{LATENCY_SECONDS}"')
        answered = _sum(_REQUESTS, window, WORK, ANSWERED)
        rules.append({"record": errors(window), "expr": f"{failed} / {all_requests}"})
        rules.append({"record": slow(window), "expr": f"1 - {fast} / {answered}"})
    return {"groups": [{"name": "polyhead-objectives", "rules": rules}]}


def _sum(name: str, window: str, *matchers: str) -> str:
    return f"sum by (job) (rate({name}{{{','.join(matchers)}}}[{window}]))"
