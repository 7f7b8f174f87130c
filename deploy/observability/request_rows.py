"""Rows about requests: objectives, latency, traffic, batching, attention."""

from grafana_foundation_sdk.models.common import StackingMode

from deploy.observability.objectives import AVAILABILITY, BURNS, LATENCY, LATENCY_SECONDS
from deploy.observability.panels import Levels, Panel, Row, make_heatmap, make_lines, make_stat
from deploy.observability.promql import (
    ANSWERED,
    CHOSEN,
    FAILED,
    STEP,
    WORK,
    buckets,
    mean,
    quantile,
    rate,
    recorded,
)
from deploy.observability.rules import errors, slow
from service.observability import metric_names as names

REQUESTS = f"{names.REQUEST_DURATION}_count"
REFUSED_OVERLOAD = 'reason=~"overloaded|too_many_bytes_held"'
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def failed(over: str = STEP) -> str:
    """POST requests a second that failed by our fault."""
    return f"clamp_min({rate(REQUESTS, WORK, FAILED, over=over)} - {rate(names.CALLER_DEADLINES, over=over)}, 0)"


def _met(objective: float) -> Levels:
    return (None, "red"), (objective, "green")


def _within(size: str, seconds: float) -> Panel:
    fast = rate(f"{names.ANSWER_DURATION}_bucket", f'size="{size}"', f'le="{seconds}"', over=CHOSEN)
    answered = rate(f"{names.ANSWER_DURATION}_count", f'size="{size}"', over=CHOSEN)
    return make_stat(
        f"{size.capitalize()} requests within {seconds:g} s",
        f"Share of the answers to {size} requests that took at most {seconds:g} s, in the time range; the objective is "
        f"{LATENCY:.0%}.",
        f"{fast} / {answered}",
        unit="percentunit",
        decimals=2,
        width=8,
        levels=_met(LATENCY),
    )


def objectives() -> Row:
    """How the objectives are met in the time range, and how fast the budgets burn."""
    windows = [burn.long for burn in BURNS]
    return "Objectives", [
        make_stat(
            "Available",
            f"Share of POST requests that did not fail, in the time range; the objective is {AVAILABILITY:.1%}.",
            f"1 - {failed(CHOSEN)} / {rate(REQUESTS, WORK, over=CHOSEN)}",
            unit="percentunit",
            decimals=3,
            width=8,
            levels=_met(AVAILABILITY),
        ),
        *(_within(size, seconds) for size, seconds in LATENCY_SECONDS.items()),
        make_lines(
            "Error budget burn",
            "Times the speed that just uses the budget up in 30 days; 14.4 and 6 page, 1 is a ticket.",
            {window: f"max({recorded(errors(window))}) / {1 - AVAILABILITY:.6g}" for window in windows},
            width=12,
        ),
        make_lines(
            "Latency budget burn",
            "Likewise, of the size that burns fastest.",
            {window: f"max({recorded(slow(window))}) / {1 - LATENCY:.6g}" for window in windows},
            width=12,
        ),
    ]


def latency() -> Row:
    """How long requests take, and what for."""
    spent = f"{names.STAGE_DURATION}_sum"
    shares = f"{rate(spent, by=('stage',))} / ignoring (stage) group_left () {rate(spent)}"
    return "Latency", [
        make_lines(
            "Latency",
            "Quantiles of POST requests answered 200, headers to end of answer. Points are exemplars.",
            {title: quantile(share, names.REQUEST_DURATION, WORK, ANSWERED) for title, share in QUANTILES.items()},
            unit="s",
            exemplars=True,
        ),
        make_heatmap(
            "Latency, all of it",
            "POST requests answered 200, by how long they took: two humps are two kinds of requests.",
            buckets(names.REQUEST_DURATION, WORK, ANSWERED),
            unit="s",
        ),
        make_lines(
            "Latency by route",
            "95 % of the POST requests answered 200 took at most this long.",
            {"{{route}}": quantile(0.95, names.REQUEST_DURATION, WORK, ANSWERED, by=("route",))},
            unit="s",
        ),
        make_lines(
            "Where the time goes",
            "Share of each stage in what requests took. Mostly inference is healthy; mostly queue needs more cores.",
            {"{{stage}}": shares},
            unit="percentunit",
            width=12,
            stacking=StackingMode.NORMAL,
        ),
        make_lines(
            "Stages",
            "95 % of the requests took at most this long for a stage.",
            {"{{stage}}": quantile(0.95, names.STAGE_DURATION, by=("stage",))},
            unit="s",
            width=12,
        ),
    ]


def traffic() -> Row:
    """What comes in and what goes out."""
    return "Traffic", [
        make_lines(
            "Requests by route",
            "A second, probes and scrapes included.",
            {"{{method}} {{route}}": f"{rate(REQUESTS, by=('method', 'route'))} > 0"},
            unit="reqps",
        ),
        make_lines(
            "Latency by size",
            "99 % of the answers took at most this long, by the tokens of their request.",
            {"{{size}}": quantile(0.99, names.ANSWER_DURATION, by=("size",))},
            unit="s",
        ),
        make_lines(
            "Refused requests",
            "A second, by the code in the error body. 429: overloaded, the queue's expected wait was too long; "
            "too_many_bytes_held, bodies or answers of all requests would take more than they may.",
            {
                "{{reason}}": f"{rate(names.REQUESTS_REJECTED, by=('reason',))} > 0",
                "client left": rate(names.CLIENT_DISCONNECTS),
            },
            unit="reqps",
        ),
        make_lines(
            "Tokens",
            "Encoded a second, special tokens included.",
            {"tokens/s": rate(names.TOKENS)},
            unit="short",
        ),
        make_lines(
            "Texts",
            "Encoded a second, and how many of them were longer than the model takes and lost their end.",
            {"texts/s": rate(names.TEXTS), "truncated": rate(names.TRUNCATED_TEXTS)},
        ),
        make_heatmap(
            "Length of texts", "Texts by their tokens, after truncation.", buckets(names.INPUT_TOKENS), unit="short"
        ),
    ]


def attention() -> Row:
    """Requests that ask for weights: few, and large."""
    size = f"{rate(names.ATTENTION_BYTES)} / {rate(names.ATTENTION_REQUESTS)}"
    return "Attention", [
        make_lines(
            "Attention requests",
            "Answers with attention weights, a second.",
            {"requests/s": rate(names.ATTENTION_REQUESTS)},
            unit="reqps",
        ),
        make_lines(
            "Attention answered",
            "Bytes of weights a second, as float32.",
            {"bytes/s": rate(names.ATTENTION_BYTES)},
            unit="Bps",
        ),
        make_lines(
            "Size of an answer",
            "Average bytes of weights in an answer that has any; --max-attention-bytes bounds each.",
            {"mean": size},
            unit="bytes",
        ),
    ]


def batching() -> Row:
    """How texts share runs of the model."""
    padding = rate(names.PADDING_TOKENS)
    return "Batching and padding", [
        make_lines(
            "Texts a run",
            "How many texts share one run of the model.",
            {"mean": mean(names.BATCH_TEXTS), "p95": quantile(0.95, names.BATCH_TEXTS)},
        ),
        make_heatmap(
            "Tokens a run",
            "Runs of the model by their tokens, without padding.",
            buckets(names.BATCH_TOKENS),
            unit="short",
        ),
        make_lines(
            "Padding",
            "Share of positions that were padding: of all, and of the worst runs. It costs in attention only.",
            {
                "of all positions": f"{padding} / ({padding} + {rate(f'{names.BATCH_TOKENS}_sum')})",
                "p95 of a run": quantile(0.95, names.BATCH_PADDING_RATIO),
            },
            unit="percentunit",
        ),
    ]
