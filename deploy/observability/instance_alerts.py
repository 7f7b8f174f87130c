"""Alerts about processes and replicas: gone, not ready, restarting, out of memory, of different models."""

from deploy.observability.alert import JOB, Rule, make_alert
from deploy.observability.process_rows import MEMORY, STARTED
from service.observability import metric_names as names

# kube-state-metrics says these; without it, and outside Kubernetes, the expressions select nothing.
RESTARTS = "kube_pod_container_status_restarts_total"
UNAVAILABLE = "kube_deployment_status_replicas_unavailable"


def instance_alerts() -> list[Rule]:
    """The rules."""
    return [
        _absent(),
        _down(),
        _not_ready(),
        _unavailable(),
        _restarts(),
        _process_restarts(),
        _memory(),
        _model_mismatch(),
    ]


def _absent() -> Rule:
    known, ready = f"count by (job) (up{{{JOB}}})", f"count by (job) ({names.READY} == 1)"
    return make_alert(
        "PolyheadAbsent",
        f"({known} unless {ready}) or absent(up{{{JOB}}})",
        wait="3m",
        severity="page",
        summary="{{ $labels.job }}: no instance takes traffic",
        text="No instance that Prometheus knows is ready, or it knows none: all are gone, or its discovery changed.",
        action="Look whether anything runs, and what its last log lines say.",
    )


def _down() -> Rule:
    return make_alert(
        "PolyheadDown",
        f"up{{{JOB}}} == 0",
        wait="5m",
        severity="ticket",
        summary="{{ $labels.instance }} cannot be scraped",
        text="Prometheus gets no answer from /metrics: the process is gone, stuck, or out of reach.",
        action="Ask it for /healthz.",
    )


def _not_ready() -> Rule:
    return make_alert(
        "PolyheadNotReady",
        f"{names.READY} == 0",
        wait="15m",
        severity="ticket",
        summary="{{ $labels.instance }} lives and takes no traffic",
        text="It has been loading, draining, or without workers for a quarter of an hour.",
        action="Ask it for /readyz, which says why.",
    )


def _unavailable() -> Rule:
    return make_alert(
        "PolyheadUnavailable",
        f'{UNAVAILABLE}{{deployment=~"polyhead(-.*)?"}} > 0',
        wait="15m",
        severity="ticket",
        summary="{{ $labels.namespace }}: {{ $value }} replicas are asked for and not there",
        text="Pods cannot be scheduled, cannot start, or are not ready.",
        action="kubectl describe the pods that are not ready.",
    )


def _restarts() -> Rule:
    """Of a process that is down between two starts as well: its last start is still in the window."""
    return make_alert(
        "PolyheadRestarts",
        f'changes({STARTED}{{{JOB}}}[30m]) > 2 or increase({RESTARTS}{{container="polyhead"}}[30m]) > 2',
        wait="0m",
        severity="ticket",
        summary="{{ $labels.instance }}{{ $labels.pod }} keeps restarting",
        text='{{ $value | printf "%.0f" }} starts within 30 minutes.',
        action="Read the log before each start (kubectl logs --previous).",
    )


def _process_restarts() -> Rule:
    """Of one process among several: the parent that starts it anew goes on, and so does its instance."""
    return make_alert(
        "PolyheadProcessRestarts",
        f"increase({names.PROCESS_RESTARTS}{{{JOB}}}[30m]) > 2",
        wait="0m",
        severity="ticket",
        summary="{{ $labels.instance }}: its processes keep dying",
        text='{{ $value | printf "%.0f" }} were started within 30 minutes in place of ones that died.',
        action="Read the log for `process N ended`, which has the exit code.",
    )


def _memory() -> Rule:
    return make_alert(
        "PolyheadMemory",
        f"{MEMORY} / on (job, instance) {names.MEMORY_LIMIT} > 0.9",
        wait="5m",
        severity="ticket",
        summary="{{ $labels.instance }} is close to its memory limit",
        text="{{ $value | humanizePercentage }} of the limit; beyond it the kernel ends the process.",
        action="Look at its memory over days: high is a small limit, rising is a leak.",
    )


def _model_mismatch() -> Rule:
    same = "job, model, source, revision, precision, weights_sha256"
    return make_alert(
        "PolyheadModelMismatch",
        f"count by (job) (count by ({same}) ({names.MODEL_INFO})) > 1",
        wait="15m",
        severity="ticket",
        summary="{{ $labels.job }}: replicas serve {{ $value }} different models",
        text="The same text has different vectors, depending on the replica that answers.",
        action="Finish the roll-out or take it back.",
    )
