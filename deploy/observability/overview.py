"""The dashboard's first two rows: is it well, and how are the objectives met?"""

from grafana_foundation_sdk.models.common import StackingMode

from deploy.observability.objectives import (
    AVAILABILITY,
    BUDGET,
    BURNS,
    ERROR_RATIO,
    LATENCY,
    LATENCY_SECONDS,
    SLOW_RATIO,
)
from deploy.observability.panels import (
    CHOSEN,
    EACH,
    FAILED,
    NOT_REFUSED,
    SHARE,
    STEP,
    WORK,
    Levels,
    Panel,
    make_lines,
    make_stat,
    quantile,
    rate,
    recorded,
    series,
    total,
)
from service.observability import metrics as names

REQUESTS = f"{names.REQUEST_DURATION}_count"
OVERLOADED = 'reason=~"overloaded|too_many_bytes_held"'
SMALL = 'size="small"'
OBJECTIVE = LATENCY_SECONDS["small"]
BUDGET_LEFT: Levels = (None, "red"), (0, "orange"), (0.25, "green")


def _failed(over: str = STEP) -> str:
    """POST requests a second that failed by our fault."""
    return f"clamp_min({rate(REQUESTS, WORK, FAILED, over=over)} - {rate(names.CALLER_DEADLINES, over=over)}, 0)"


def _fullest(used: str, limit: str) -> str:
    return f"max({series(used)} / {series(limit)})"


OVERVIEW: list[Panel] = [
    make_stat(
        "Ready",
        "Instances that take traffic, of all that Prometheus knows.",
        f"{total(names.READY)} / count({series('up')})",
        levels=((None, "red"), (0.5, "orange"), (0.9, "green")),  # one that is replaced leaves nine of ten
        alert="PolyheadNotReady",
    ),
    make_stat("Requests", "POST requests a second, of all routes.", rate(REQUESTS, WORK), unit="reqps", decimals=1),
    make_stat(
        "Errors",
        "Share of accepted POST requests that failed: 5xx, without 504 by a caller's own X-Request-Timeout.",
        f"{_failed()} / {rate(REQUESTS, WORK, NOT_REFUSED)}",
        decimals=2,
        levels=((None, "green"), (1 - AVAILABILITY, "orange"), (0.01, "red")),
        alert="PolyheadErrorBudgetBurn",
    ),
    make_stat(
        "Refused",
        "Share of POST requests answered 429: more came than there was room for.",
        f"sum({rate(names.REQUESTS_REJECTED, OVERLOADED)}) / {rate(REQUESTS, WORK)}",
        decimals=2,
        levels=((None, "green"), (0.001, "orange"), (0.05, "red")),
        alert="PolyheadShedding",
    ),
    make_stat(
        "p99",
        f"99 % of the small requests (up to 512 tokens) took at most this long; the objective is {OBJECTIVE:g} s.",
        quantile(0.99, names.ANSWER_DURATION, SMALL),
        unit="s",
        decimals=3,
        levels=((None, "green"), (OBJECTIVE / 2, "orange"), (OBJECTIVE, "red")),
        alert="PolyheadLatencyBudgetBurn",
    ),
    make_stat(
        "Busy",
        "Share of the workers' time that models ran, as far as cores let them. The autoscaler aims at 70 %.",
        f"{rate(names.WORKER_BUSY)} / {total(names.BUSY_LIMIT)}",
        levels=((None, "green"), (0.8, "orange"), (0.95, "red")),
        alert="PolyheadAutoscalerAtMaximum",
    ),
    make_stat(
        "Error budget left",
        f"Of 30 days: {1 - AVAILABILITY:.1%} of the POST requests may fail. Below 0 the objective is missed.",
        f"min(1 - {recorded(ERROR_RATIO + BUDGET)} / {1 - AVAILABILITY:.6g})",
        levels=BUDGET_LEFT,
        alert="PolyheadErrorBudgetBurn",
    ),
    make_stat(
        "Latency budget left",
        f"Of 30 days: {1 - LATENCY:.0%} of the answers may take longer than their size allows.",
        f"min(1 - {recorded(SLOW_RATIO + BUDGET)} / {1 - LATENCY:.6g})",
        levels=BUDGET_LEFT,
        alert="PolyheadLatencyBudgetBurn",
    ),
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
        {
            "p50": quantile(0.5, names.ANSWER_DURATION, SMALL),
            "p99": quantile(0.99, names.ANSWER_DURATION, SMALL),
            "objective": f"vector({OBJECTIVE:g})",
        },
        unit="s",
    ),
    make_lines(
        "Of each limit",
        "How much of each limit is in use, by the instance that is closest to it.",
        {
            "workers": f"max({rate(names.WORKER_BUSY, by=EACH)} / {total(names.BUSY_LIMIT, by=EACH)})",
            "queue": _fullest(names.QUEUE_TOKENS, names.QUEUE_LIMIT_TOKENS),
            "memory": _fullest(names.MEMORY_ANONYMOUS, names.MEMORY_LIMIT),
            "open files": _fullest("process_open_fds", "process_max_fds"),
        },
        unit=SHARE,
    ),
]


def _within(size: str, seconds: float) -> Panel:
    of_size = f'size="{size}"'
    fast = rate(f"{names.ANSWER_DURATION}_bucket", of_size, f'le="{seconds}"', over=CHOSEN)
    return make_stat(
        f"{size.capitalize()} requests within {seconds:g} s",
        f"Share of the answers to {size} requests that took at most {seconds:g} s, in the time range; the objective is "
        f"{LATENCY:.0%}.",
        f"{fast} / {rate(f'{names.ANSWER_DURATION}_count', of_size, over=CHOSEN)}",
        decimals=2,
        width=8,
        levels=((None, "red"), (LATENCY, "green")),
    )


OBJECTIVES: list[Panel] = [
    make_stat(
        "Available",
        f"Share of accepted POST requests that did not fail in this time range; the objective: {AVAILABILITY:.1%}.",
        f"1 - {_failed(CHOSEN)} / {rate(REQUESTS, WORK, NOT_REFUSED, over=CHOSEN)}",
        decimals=3,
        width=8,
        levels=((None, "red"), (AVAILABILITY, "green")),
    ),
    *(_within(size, seconds) for size, seconds in LATENCY_SECONDS.items()),
    make_lines(
        "Error budget burn",
        "Times the speed that just uses the budget up in 30 days; 14.4 and 6 page, 1 is a ticket.",
        {burn.long: f"max({recorded(ERROR_RATIO + burn.long)}) / {1 - AVAILABILITY:.6g}" for burn in BURNS},
        width=12,
    ),
    make_lines(
        "Latency budget burn",
        "Likewise, of the size that burns fastest.",
        {burn.long: f"max({recorded(SLOW_RATIO + burn.long)}) / {1 - LATENCY:.6g}" for burn in BURNS},
        width=12,
    ),
]
