"""The dashboard's first row, which stands open: is it well?"""

from grafana_foundation_sdk.models.common import StackingMode

from deploy.observability.objectives import AVAILABILITY, BUDGET, ERROR_RATIO, LATENCY, LATENCY_SECONDS, SLOW_RATIO
from deploy.observability.panels import (
    EACH,
    NOT_REFUSED,
    WORK,
    Levels,
    Panel,
    Row,
    make_lines,
    make_stat,
    quantile,
    rate,
    recorded,
    series,
    total,
)
from deploy.observability.rows import MOST_FILES, OPEN_FILES, REFUSED_OVERLOAD, REQUESTS, SHARE, failed
from service.observability import metrics as names

SMALL = 'size="small"'
_OBJECTIVE = LATENCY_SECONDS["small"]

_ENOUGH: Levels = (None, "red"), (0.5, "orange"), (0.9, "green")  # one that is replaced leaves nine of ten
_ERRORS: Levels = (None, "green"), (1 - AVAILABILITY, "orange"), (0.01, "red")
_REFUSED: Levels = (None, "green"), (0.001, "orange"), (0.05, "red")
_FAST: Levels = (None, "green"), (_OBJECTIVE / 2, "orange"), (_OBJECTIVE, "red")
_BUSY: Levels = (None, "green"), (0.8, "orange"), (0.95, "red")
_LEFT: Levels = (None, "red"), (0, "orange"), (0.25, "green")


def overview() -> Row:
    """The row of a glance."""
    return "Overview", [*_traffic(), *_load(), *_budgets(), *_history()]


def _traffic() -> list[Panel]:
    posts = rate(REQUESTS, WORK)
    return [
        make_stat(
            "Ready",
            "Instances that take traffic, of all that Prometheus knows.",
            f"{total(names.READY)} / count({series('up')})",
            unit=SHARE,
            decimals=0,
            levels=_ENOUGH,
            alert="PolyheadNotReady",
        ),
        make_stat("Requests", "POST requests a second, of all routes.", posts, unit="reqps"),
        make_stat(
            "Errors",
            "Share of accepted POST requests that failed: 5xx, without 504 by a caller's own X-Request-Timeout.",
            f"{failed()} / {rate(REQUESTS, WORK, NOT_REFUSED)}",
            unit=SHARE,
            decimals=2,
            levels=_ERRORS,
            alert="PolyheadErrorBudgetBurn",
        ),
    ]


def _load() -> list[Panel]:
    return [
        make_stat(
            "Refused",
            "Share of POST requests answered 429: more came than there was room for.",
            f"sum({rate(names.REQUESTS_REJECTED, REFUSED_OVERLOAD)}) / {rate(REQUESTS, WORK)}",
            unit=SHARE,
            decimals=2,
            levels=_REFUSED,
            alert="PolyheadShedding",
        ),
        make_stat(
            "p99",
            f"99 % of the small requests (up to 512 tokens) took at most this long; the objective is {_OBJECTIVE:g} s.",
            quantile(0.99, names.ANSWER_DURATION, SMALL),
            unit="s",
            decimals=3,
            levels=_FAST,
            alert="PolyheadLatencyBudgetBurn",
        ),
        make_stat(
            "Busy",
            "Share of the workers' time that the model ran. The autoscaler aims at 70 %.",
            f"{rate(names.WORKER_BUSY)} / {total(names.WORKERS)}",
            unit=SHARE,
            decimals=0,
            levels=_BUSY,
            alert="PolyheadAutoscalerAtMaximum",
        ),
    ]


def _budgets() -> list[Panel]:
    return [
        _budget_left(
            "Error budget left",
            f"Of 30 days: {1 - AVAILABILITY:.1%} of the POST requests may fail. Below 0 the objective is missed.",
            f"{recorded(ERROR_RATIO + BUDGET)} / {1 - AVAILABILITY:.6g}",
            alert="PolyheadErrorBudgetBurn",
        ),
        _budget_left(
            "Latency budget left",
            f"Of 30 days: {1 - LATENCY:.0%} of the answers may take longer than their size allows.",
            f"{recorded(SLOW_RATIO + BUDGET)} / {1 - LATENCY:.6g}",
            alert="PolyheadLatencyBudgetBurn",
        ),
    ]


def _budget_left(title: str, text: str, used: str, *, alert: str) -> Panel:
    return make_stat(title, text, f"min(1 - {used})", unit=SHARE, decimals=0, levels=_LEFT, alert=alert)


def _history() -> list[Panel]:
    quantiles = {name: quantile(q, names.ANSWER_DURATION, SMALL) for name, q in {"p50": 0.5, "p99": 0.99}.items()}
    return [
        make_lines(
            "POST requests by status",
            "A second. 499: the client left before its answer.",
            {"{{status}}": f"{rate(REQUESTS, WORK, by=('status',))} > 0"},
            unit="reqps",
            stacking=StackingMode.NORMAL,
        ),
        make_lines(
            "Latency of small requests",
            "Quantiles of requests of up to 512 tokens, against what 99 % of them may take.",
            quantiles | {"objective": f"vector({_OBJECTIVE:g})"},
            unit="s",
        ),
        make_lines(
            "Of each limit",
            "How much of each limit is in use, by the instance that is closest to it.",
            {
                "workers": f"max({rate(names.WORKER_BUSY, by=EACH)} / {total(names.WORKERS, by=EACH)})",
                "queue": _fullest(names.QUEUE_TOKENS, names.QUEUE_LIMIT_TOKENS),
                "memory": _fullest(names.MEMORY_ANONYMOUS, names.MEMORY_LIMIT),
                "open files": _fullest(OPEN_FILES, MOST_FILES),
            },
            unit=SHARE,
        ),
    ]


def _fullest(used: str, limit: str) -> str:
    return f"max({series(used)} / {series(limit)})"
