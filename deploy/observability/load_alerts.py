"""Alerts about more load than there is room for."""

from deploy.observability.alert import Rule, make_alert
from deploy.observability.objectives import LEAST_REQUESTS
from service.observability import metric_names as names

# kube-state-metrics says these. KEDA's autoscaler is called keda-hpa-polyhead.
AT_PRESENT = "kube_horizontalpodautoscaler_status_current_replicas"
AT_MOST = "kube_horizontalpodautoscaler_spec_max_replicas"


def load_alerts() -> list[Rule]:
    """The rules."""
    return [_shedding(), _autoscaler_at_maximum(), _connections(), _queue_saturated(), _queue_age(), _event_loop_lag()]


def _shedding() -> Rule:
    refused = f'sum by (job) (increase({names.REQUESTS_REJECTED}{{reason=~"overloaded|too_many_bytes_held"}}[5m]))'
    work = f'sum by (job) (increase({names.REQUEST_DURATION}_count{{method="POST"}}[5m]))'
    return make_alert(
        "PolyheadShedding",
        f"{refused} / {work} > 0.05 and {refused} >= {LEAST_REQUESTS}",
        wait="10m",
        severity="page",
        summary="{{ $labels.job }} refuses requests",
        text="{{ $value | humanizePercentage }} of the POST requests are answered 429: more comes than it can take.",
        action="Add replicas, or find the caller who sends so much.",
    )


def _autoscaler_at_maximum() -> Rule:
    scaler = '{horizontalpodautoscaler=~"(keda-hpa-)?polyhead(-.*)?"}'
    return make_alert(
        "PolyheadAutoscalerAtMaximum",
        f"{AT_PRESENT}{scaler} >= {AT_MOST}{scaler}",
        wait="15m",
        severity="ticket",
        summary="{{ $labels.namespace }}: the autoscaler may add no more replicas",
        text="{{ $value }} replicas run, which is the most; more load would be refused.",
        action="Raise the most replicas, or look why so many are needed.",
    )


def _connections() -> Rule:
    return make_alert(
        "PolyheadConnections",
        f'sum by (job) (increase({names.REQUESTS_REJECTED}{{reason="too_many_connections"}}[5m])) >= {LEAST_REQUESTS}',
        wait="5m",
        severity="ticket",
        summary="{{ $labels.job }} turns connections away",
        text='{{ $value | printf "%.0f" }} in five minutes found as many open as may be; no other figure shows them.',
        action="Count connections by client.",
    )


def _queue_saturated() -> Rule:
    return make_alert(
        "PolyheadQueueSaturated",
        f"{names.QUEUE_TOKENS} / {names.QUEUE_LIMIT_TOKENS} > 0.8",
        wait="5m",
        severity="ticket",
        summary="{{ $labels.instance }}: the queue is nearly full",
        text="{{ $value | humanizePercentage }} of the tokens that may wait are waiting; then requests are refused.",
        action="Add replicas.",
    )


def _queue_age() -> Rule:
    return make_alert(
        "PolyheadQueueAge",
        f"{names.QUEUE_OLDEST_AGE} > 5",
        wait="5m",
        severity="ticket",
        summary="{{ $labels.instance }}: texts wait too long",
        text="The oldest has waited {{ $value | humanizeDuration }}.",
        action="Look whether its workers run anything.",
    )


def _event_loop_lag() -> Rule:
    buckets = f"sum by (job, instance, le) (rate({names.LOOP_LAG}_bucket[5m]))"
    return make_alert(
        "PolyheadEventLoopLag",
        f"histogram_quantile(0.99, {buckets}) > 0.5",
        wait="5m",
        severity="ticket",
        summary="{{ $labels.instance }}: the event loop is held up",
        text="Timers fire up to {{ $value | humanizeDuration }} late, and so does everything else.",
        action="Look whether the kernel throttles the container, else for very large requests.",
    )
