"""All alerts, as a rule file has them. Each has a section in the runbook."""

from typing import Any, Literal

from deploy.observability.objectives import (
    ACCEPTANCE,
    AVAILABILITY,
    BURNS,
    FAILURES,
    LATENCY,
    LEAST_REQUESTS,
    REFUSALS,
    SLOW_ANSWERS,
    Burn,
    Document,
    count,
    errors,
    refusals,
    slow,
)
from deploy.observability.panels import WORK
from deploy.observability.rows import REFUSED_OVERLOAD, STARTED
from service.observability import metrics as names

RUNBOOK = "deploy/RUNBOOK.md"  # in this repository
JOB = 'job=~"(.*/)?polyhead(-.*)?"'
"""The scrape job: one for each model. The PodMonitor makes it of the namespace and the Deployment's name."""

SATURATED_SECONDS = 0.25  # half of --max-queue-delay; tokens would not tell: small requests are refused by time

# kube-state-metrics exports these; without it, and outside Kubernetes, the expressions select nothing.
ASKED_FOR = 'kube_deployment_spec_replicas{deployment=~"polyhead(-.*)?"} > 0'
CONTAINER_RESTARTS = "kube_pod_container_status_restarts_total"
UNAVAILABLE = 'kube_deployment_status_replicas_unavailable{deployment=~"polyhead(-.*)?"}'
SCALER = '{horizontalpodautoscaler=~"(keda-hpa-)?polyhead(-.*)?"}'  # KEDA's is called keda-hpa-polyhead
REPLICAS = f"kube_horizontalpodautoscaler_status_current_replicas{SCALER}"
MOST_REPLICAS = f"kube_horizontalpodautoscaler_spec_max_replicas{SCALER}"

Rule = dict[str, Any]
Severity = Literal["page", "ticket", "none"]


def make_alerts(runbook_url: str | None = None) -> Document:
    """The rule file; every alert names its section of the runbook, with a link if the runbook is published."""
    name_of_place, place = ("runbook_url", runbook_url) if runbook_url else ("runbook", RUNBOOK)
    groups = {
        "polyhead-budgets": [*map(_errors_burn, BURNS), *map(_latency_burns, BURNS), _refusals_burn(BURNS[-1])],
        "polyhead-instances": [*readiness_alerts(), *process_alerts()],
        "polyhead-load": [*refusal_alerts(), *waiting_alerts()],
        "polyhead-watchdog": [_watchdog()],
    }
    for rules in groups.values():
        for rule in rules:
            rule["annotations"][name_of_place] = f"{place}#{rule['alert'].lower()}"
    return {"groups": [{"name": name, "rules": rules} for name, rules in groups.items()]}


def make_prometheus_rule(*documents: Document) -> Document:
    """Rule files as the Prometheus operator takes them: one PrometheusRule that holds the groups of all."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "polyhead"},
        "spec": {"groups": [group for document in documents for group in document["groups"]]},
    }


def make_alert(
    name: str,
    expression: str,
    *,
    wait: str,
    severity: Severity = "ticket",
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
        severity: `page` wakes somebody: users are hurt now. `ticket` is for the next working day. `none` is for the
            watchdog alone.
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
        action="Look where the time goes; if it is the queue, add replicas.",
    )


def _refusals_burn(burn: Burn) -> Rule:
    """Of the longest window alone: a flood of refusals pages as PolyheadShedding."""
    return _burns(
        "PolyheadRefusalBudgetBurn",
        burn,
        ratios=(refusals(burn.long), refusals(burn.short)),
        least=count(REFUSALS, burn.long),
        budget=1 - ACCEPTANCE,
        summary="{{ $labels.job }}: refused requests (429)",
        action="Add replicas, or raise the most that the autoscaler may have.",
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


def readiness_alerts() -> list[Rule]:
    """About replicas that do not answer: gone, unreachable, not ready, never scheduled."""
    known, ready = f"count by (job) (up{{{JOB}}})", f"count by (job) ({names.READY} == 1)"
    asked_for = f'count by (job) (label_join({ASKED_FOR}, "job", "/", "namespace", "deployment"))'
    return [
        make_alert(
            "PolyheadAbsent",
            f"(({known} or {asked_for}) unless {ready}) or absent(up{{{JOB}}} or {ASKED_FOR})",
            wait="3m",
            severity="page",
            summary="{{ $labels.job }}: no instance takes traffic",
            text=(
                "No instance that Prometheus knows is ready, or it knows none: all are gone, or its discovery changed."
            ),
            action="Look whether anything runs, and what its last log lines say.",
        ),
        make_alert(
            "PolyheadDown",
            f"up{{{JOB}}} == 0",
            wait="5m",
            summary="{{ $labels.instance }} cannot be scraped",
            text="Prometheus gets no answer from /metrics: the process is gone, stuck, or out of reach.",
            action="Ask it for /healthz.",
        ),
        make_alert(
            "PolyheadNotReady",
            f"{names.READY} == 0",
            wait="15m",
            summary="{{ $labels.instance }} lives but is not ready",
            text="It has been loading, draining, or without workers for a quarter of an hour.",
            action="Ask it for /readyz, which says why.",
        ),
        make_alert(  # of one model among several: without any the instance is not ready
            "PolyheadModelNotReady",
            f"{names.MODEL_READY} == 0 and on (job, instance) {names.READY} == 1",
            wait="15m",
            summary="{{ $labels.instance }}: {{ $labels.model }} does not answer, other models do",
            text="It could not be loaded, or its workers are gone; requests for it are answered 503.",
            action="Look for its directory in the log, which says why.",
        ),
        make_alert(
            "PolyheadUnavailable",
            f"{UNAVAILABLE} > 0",
            wait="15m",
            summary="{{ $labels.namespace }}: {{ $value }} replicas are asked for and not there",
            text="Pods cannot be scheduled, cannot start, or are not ready.",
            action="kubectl describe the pods that are not ready.",
        ),
    ]


def process_alerts() -> list[Rule]:
    """About replicas that answer and are not well: restarting, out of memory, of different models."""
    # Of a process that is down between two starts as well: its last start is still in the window.
    restarts = (
        f'changes({STARTED}{{{JOB}}}[30m]) > 2 or increase({CONTAINER_RESTARTS}{{container="polyhead"}}[30m]) > 2'
    )
    return [
        make_alert(
            "PolyheadRestarts",
            restarts,
            wait="0m",
            summary="{{ $labels.instance }}{{ $labels.pod }} keeps restarting",
            text='{{ $value | printf "%.0f" }} starts within 30 minutes.',
            action="Read the log before each start (kubectl logs --previous).",
        ),
        make_alert(  # of one process among several: the parent that replaces it goes on, and so does its instance
            "PolyheadProcessRestarts",
            f"increase({names.PROCESS_RESTARTS}{{{JOB}}}[30m]) > 2",
            wait="0m",
            summary="{{ $labels.instance }}: its processes keep dying",
            text='{{ $value | printf "%.0f" }} were started within 30 minutes to replace ones that died.',
            action="Read the log for `process N ended`, which has the exit code.",
        ),
        make_alert(
            "PolyheadMemory",
            f"{names.MEMORY_ANONYMOUS} / on (job, instance) {names.MEMORY_LIMIT} > 0.9",
            wait="5m",
            summary="{{ $labels.instance }} is close to its memory limit",
            text="{{ $value | humanizePercentage }} of the limit, without mapped files; beyond it the kernel ends it.",
            action="Look at its memory over days: high is a small limit, rising is a leak.",
        ),
        make_alert(
            "PolyheadModelMismatch",
            f"count by (job, model) (count by (job, model, identity) ({names.MODEL_INFO})) > 1",
            wait="15m",
            summary="{{ $labels.job }}: replicas serve {{ $value }} different models called {{ $labels.model }}",
            text="The same text has different vectors, depending on the replica that answers.",
            action="Finish the roll-out or take it back.",
        ),
    ]


def refusal_alerts() -> list[Rule]:
    """About load that is turned away, or soon will be."""
    refused = f"sum by (job) (increase({names.REQUESTS_REJECTED}{{{REFUSED_OVERLOAD}}}[5m]))"
    posts = f"sum by (job) (increase({names.REQUEST_DURATION}_count{{{WORK}}}[5m]))"
    turned_away = f'sum by (job) (increase({names.REQUESTS_REJECTED}{{reason="too_many_connections"}}[5m]))'
    return [
        make_alert(
            "PolyheadShedding",
            f"{refused} / {posts} > 0.05 and {refused} >= {LEAST_REQUESTS}",
            wait="10m",
            severity="page",
            summary="{{ $labels.job }} refuses requests",
            text=(
                "{{ $value | humanizePercentage }} of the POST requests are answered 429: more comes than it can take."
            ),
            action="Add replicas, or find the caller who sends so much.",
        ),
        make_alert(
            "PolyheadAutoscalerAtMaximum",
            f"{REPLICAS} >= {MOST_REPLICAS}",
            wait="15m",
            summary="{{ $labels.namespace }}: the autoscaler may add no more replicas",
            text="{{ $value }} replicas run, which is the most; more load would be refused.",
            action="Raise the maximum, or find out why the load needs it.",
        ),
        make_alert(
            "PolyheadConnections",
            f"{turned_away} >= {LEAST_REQUESTS}",
            wait="5m",
            summary="{{ $labels.job }} turns connections away",
            text=(
                '{{ $value | printf "%.0f" }} in five minutes found as many open as may be; no other figure shows them.'
            ),
            action="Count connections by client.",
        ),
    ]


def waiting_alerts() -> list[Rule]:
    """About requests that wait: for a worker, or for the event loop."""
    lag = f"sum by (job, instance, le) (rate({names.LOOP_LAG}_bucket[5m]))"
    waits = f'sum by (job, instance, le) (rate({names.STAGE_DURATION}_bucket{{stage="queue"}}[5m]))'
    return [
        make_alert(
            "PolyheadQueueSaturated",
            f"histogram_quantile(0.5, {waits}) > {SATURATED_SECONDS}",
            wait="5m",
            summary="{{ $labels.instance }}: requests wait nearly as long as they may",
            text="Half of them wait {{ $value | humanizeDuration }} or longer for a worker; then requests are refused.",
            action="Add replicas.",
        ),
        make_alert(
            "PolyheadQueueAge",
            f"{names.QUEUE_OLDEST_AGE} > 5",
            wait="5m",
            summary="{{ $labels.instance }}: texts wait too long",
            text="The oldest has waited {{ $value | humanizeDuration }}.",
            action="Look whether its workers run anything.",
        ),
        make_alert(
            "PolyheadEventLoopLag",
            f"histogram_quantile(0.99, {lag}) > 0.5",
            wait="5m",
            summary="{{ $labels.instance }}: the event loop is held up",
            text="Timers fire up to {{ $value | humanizeDuration }} late, and so does everything else.",
            action="Look whether the kernel throttles the container, else for very large requests.",
        ),
    ]


def _watchdog() -> Rule:
    return make_alert(
        "PolyheadWatchdog",
        "vector(1)",
        wait="0m",
        severity="none",
        summary="Prometheus evaluates these rules",
        text="Always firing. Whoever receives it and misses it knows that alerts no longer arrive.",
        action="Nothing. If it stops, look at Prometheus and at what delivers its alerts.",
    )
