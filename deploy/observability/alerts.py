"""The alerts. Each has a section in the runbook that its `runbook_url` leads to."""

from collections.abc import Callable, Iterator
from typing import Any

from deploy.observability.objectives import AVAILABILITY, BURNS, LATENCY, LATENCY_SECONDS
from deploy.observability.process_rows import MEMORY, STARTED
from deploy.observability.rules import Document, errors, slow
from service.observability import metric_names as names

RUNBOOK = "deploy/RUNBOOK.md"  # in this repository; --runbook-url says where people can read it
JOB = 'job=~"(.*/)?polyhead"'  # the scrape job, or the namespace and name of a PodMonitor

Rule = dict[str, Any]


def make_alerts(runbook: str = RUNBOOK) -> Document:
    """The rule file; every alert leads to its section of the runbook."""
    budgets = [
        *_burns("PolyheadErrorBudgetBurn", "errors (5xx)", errors, 1 - AVAILABILITY),
        *_burns("PolyheadLatencyBudgetBurn", f"answers slower than {LATENCY_SECONDS:g} s", slow, 1 - LATENCY),
    ]
    groups = {"polyhead-budgets": budgets, "polyhead-instances": list(_instances()), "polyhead-load": list(_load())}
    for rules in groups.values():
        for rule in rules:
            rule["annotations"]["runbook_url"] = f"{runbook}#{rule['alert'].lower()}"
    return {"groups": [{"name": name, "rules": rules} for name, rules in groups.items()]}


def _burns(alert: str, what: str, record: Callable[[str], str], budget: float) -> Iterator[Rule]:
    for burn in BURNS:
        limit = f"{burn.factor * budget:.6g}"
        yield _alert(
            alert,
            f"{record(burn.long)} > {limit} and {record(burn.short)} > {limit}",
            wait=burn.wait,
            severity=burn.severity,
            summary=f"{{{{ $labels.job }}}}: {what} use up the budget of 30 days {burn.factor:g} times too fast",
            text=f"{{{{ $value | humanizePercentage }}}} over {burn.long}; {budget:.2%} are within the objective.",
            labels={"window": burn.long},
        )


def _instances() -> Iterator[Rule]:
    yield _alert(
        "PolyheadDown",
        f"up{{{JOB}}} == 0",
        wait="1m",
        severity="page",
        summary="{{ $labels.instance }} cannot be scraped",
        text="Prometheus gets no answer from /metrics: the process is gone, stuck, or out of reach.",
    )
    yield _alert(
        "PolyheadAbsent",
        f"absent(up{{{JOB}}})",
        wait="5m",
        severity="page",
        summary="nothing is scraped under a job named polyhead",
        text="No instance is known to Prometheus: all are gone, or discovery or the job's name changed.",
    )
    yield _alert(
        "PolyheadNotReady",
        f"{names.READY} == 0",
        wait="5m",
        severity="page",
        summary="{{ $labels.instance }} lives and takes no traffic",
        text="It has been loading, draining, or without workers for five minutes.",
    )
    yield _alert(
        "PolyheadRestarts",
        f"changes({STARTED}[30m]) > 2 and on (job, instance) {names.READY}",
        wait="0m",
        severity="page",
        summary="{{ $labels.instance }} keeps restarting",
        text="{{ $value }} starts within 30 minutes.",
    )
    yield _alert(
        "PolyheadMemory",
        f"{MEMORY} / on (job, instance) {names.MEMORY_LIMIT} > 0.9",
        wait="5m",
        severity="page",
        summary="{{ $labels.instance }} is close to its memory limit",
        text="{{ $value | humanizePercentage }} of the limit; beyond it the kernel ends the process.",
    )
    same = "job, model, source, revision, precision, weights_sha256"
    yield _alert(
        "PolyheadModelMismatch",
        f"count by (job) (count by ({same}) ({names.MODEL_INFO})) > 1",
        wait="15m",
        severity="ticket",
        summary="{{ $labels.job }}: replicas serve {{ $value }} different models",
        text="The same text has different vectors, depending on the replica that answers.",
    )


def _load() -> Iterator[Rule]:
    refused = f'sum by (job) (rate({names.REQUESTS_REJECTED}{{reason=~"overloaded|too_many_bytes_held"}}[5m]))'
    work = f'sum by (job) (rate({names.REQUEST_DURATION}_count{{method="POST"}}[5m]))'
    yield _alert(
        "PolyheadShedding",
        f"{refused} / {work} > 0.05",
        wait="5m",
        severity="page",
        summary="{{ $labels.job }} refuses requests",
        text="{{ $value | humanizePercentage }} of the POST requests are answered 429: more comes than it can take.",
    )
    yield _alert(
        "PolyheadConnections",
        f'sum by (job) (rate({names.REQUESTS_REJECTED}{{reason="too_many_connections"}}[5m])) > 0',
        wait="5m",
        severity="page",
        summary="{{ $labels.job }} turns connections away",
        text='{{ $value | printf "%.2f" }} a second find as many open as may be; no other figure shows them.',
    )
    yield _alert(
        "PolyheadQueueSaturated",
        f"{names.QUEUE_TOKENS} / {names.QUEUE_LIMIT_TOKENS} > 0.8",
        wait="5m",
        severity="ticket",
        summary="{{ $labels.instance }}: the queue is nearly full",
        text="{{ $value | humanizePercentage }} of the tokens that may wait are waiting; then requests are refused.",
    )
    yield _alert(
        "PolyheadQueueAge",
        f"{names.QUEUE_OLDEST_AGE} > 5",
        wait="5m",
        severity="page",
        summary="{{ $labels.instance }}: texts wait too long",
        text="The oldest has waited {{ $value | humanizeDuration }}.",
    )
    buckets = f"sum by (job, instance, le) (rate({names.LOOP_LAG}_bucket[5m]))"
    yield _alert(
        "PolyheadEventLoopLag",
        f"histogram_quantile(0.99, {buckets}) > 0.5",
        wait="5m",
        severity="ticket",
        summary="{{ $labels.instance }}: the event loop is held up",
        text="Timers fire up to {{ $value | humanizeDuration }} late, and so does everything else.",
    )


def _alert(
    alert: str,
    expression: str,
    *,
    wait: str,
    severity: str,
    summary: str,
    text: str,
    labels: dict[str, str] | None = None,
) -> Rule:
    return {
        "alert": alert,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity, **(labels or {})},
        "annotations": {"summary": summary, "description": text},
    }
