"""Rows about requests: health, latency, traffic, attention."""

from grafana_foundation_sdk.models.common import StackingMode

from deploy.observability.objectives import AVAILABILITY, LATENCY, LATENCY_SECONDS
from deploy.observability.panels import Levels, Panel, Row, make_heatmap, make_lines, make_stat
from deploy.observability.promql import ANSWERED, CHOSEN, FAILED, STEP, WORK, buckets, mean, quantile, rate, total
from service.observability import metric_names as names

REQUESTS = f"{names.REQUEST_DURATION}_count"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}

_GOOD_IF_LOW = "green", "orange", "red"
_FAST: Levels = tuple(zip((None, LATENCY_SECONDS / 2, LATENCY_SECONDS), _GOOD_IF_LOW, strict=True))


def _met(objective: float) -> Levels:
    return (None, "red"), (objective, "green")


def _error_ratio(over: str) -> str:
    return f"{rate(REQUESTS, WORK, FAILED, over=over)} / {rate(REQUESTS, WORK, over=over)}"


def _fast_ratio(over: str) -> str:
    fast = rate(f"{names.REQUEST_DURATION}_bucket", WORK, ANSWERED, f'le="{LATENCY_SECONDS}"', over=over)
    return f"{fast} / {rate(REQUESTS, WORK, ANSWERED, over=over)}"


def health() -> Row:
    """Is it well? One glance."""

    def latency(title: str, share: float) -> Panel:
        text = f"{share:.0%} of the POST requests answered 200 were answered within this time."
        expression = quantile(share, names.REQUEST_DURATION, WORK, ANSWERED)
        return make_stat(title, text, expression, unit="s", decimals=3, levels=_FAST)

    ratio = "percentunit"
    return "Health", [
        make_stat(
            "Ready",
            "Instances that take traffic.",
            total(names.READY),
            decimals=0,
            levels=((None, "red"), (1, "green")),
        ),
        make_stat("Requests", "POST requests a second, of all routes.", rate(REQUESTS, WORK), unit="reqps"),
        make_stat(
            "Errors",
            "Share of POST requests answered 5xx. 429 is not one of them: see Refused requests.",
            _error_ratio(STEP),
            unit=ratio,
            decimals=2,
            levels=tuple(zip((None, 1 - AVAILABILITY, 0.01), _GOOD_IF_LOW, strict=True)),
        ),
        *(latency(title, share) for title, share in QUANTILES.items() if share != 0.9),
        make_stat(
            "Available",
            f"Share of POST requests not answered 5xx in the time range; the objective is {AVAILABILITY:.1%}.",
            f"1 - {_error_ratio(CHOSEN)}",
            unit=ratio,
            decimals=3,
            levels=_met(AVAILABILITY),
        ),
        make_stat(
            f"Within {LATENCY_SECONDS:g} s",
            f"Share of POST requests answered 200 in {LATENCY_SECONDS:g} s or less in the time range; the objective is "
            f"{LATENCY:.0%}.",
            _fast_ratio(CHOSEN),
            unit=ratio,
            decimals=2,
            levels=_met(LATENCY),
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
            "POST requests by status",
            "A second. 499: the client left before its answer.",
            {"{{status}}": f"{rate(REQUESTS, WORK, by=('status',))} > 0"},
            unit="reqps",
            stacking=StackingMode.NORMAL,
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
