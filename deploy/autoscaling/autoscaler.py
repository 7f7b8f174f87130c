"""Kubernetes' HorizontalPodAutoscaler: from metrics to a number of replicas.

Follows `pkg/controller/podautoscaler` of Kubernetes 1.34: `replica_calculator.go` for what a metric asks for,
`horizontal.go` for stabilisation windows and policies. It knows neither Prometheus nor replicas.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

COMPONENTS = Path(__file__).parents[1] / "kubernetes/components"

SYNC_SECONDS = 15.0  # --horizontal-pod-autoscaler-sync-period
TOLERANCE = 0.1  # --horizontal-pod-autoscaler-tolerance

Document = Mapping[str, Any]


class Metric(NamedTuple):
    """One figure that asks for replicas."""

    target: float  # what one replica should have of it
    query: str | None = None  # PromQL over all replicas; None for the share of the CPU request that each replica uses


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that one autoscaler is told.

    Attributes:
        least, most: replicas.
        metrics: of which the one that asks for most replicas counts.
        up, down: how fast the number may move each way, in the words of a HorizontalPodAutoscaler's behavior: of the
            recommendations within `stabilizationWindowSeconds` the most cautious one counts, and of `policies` the one
            that allows most.
    """

    least: int
    most: int
    metrics: Sequence[Metric]
    up: Document
    down: Document

    def __post_init__(self) -> None:
        """Refuses what is not simulated."""
        for policy in (behavior.get("selectPolicy", "Max") for behavior in (self.up, self.down)):
            if policy != "Max":
                raise ValueError(f"selectPolicy is {policy}: expected Max")


def read_scaled_object(path: Path, base: Path | None = None) -> Rules:
    """The rules of a ScaledObject, laid over another one where a component patches it.

    Raises:
        ValueError: it uses what the simulator does not know.
    """
    spec = (_load(base)["spec"] if base else {}) | _load(path)["spec"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    metrics = []
    for trigger in spec["triggers"]:
        if (trigger["type"], trigger["metricType"]) != ("prometheus", "AverageValue"):
            raise ValueError(f"trigger {trigger.get('name')}: expected type prometheus with metricType AverageValue")
        metrics.append(Metric(float(trigger["metadata"]["threshold"]), trigger["metadata"]["query"]))
    return Rules(spec["minReplicaCount"], spec["maxReplicaCount"], metrics, behavior["scaleUp"], behavior["scaleDown"])


def read_autoscaler(path: Path) -> Rules:
    """The rules of a HorizontalPodAutoscaler; likewise."""
    spec = _load(path)["spec"]
    metrics = []
    for metric in spec["metrics"]:
        found = metric.get("containerResource", {})
        if metric["type"] != "ContainerResource" or found["name"] != "cpu":
            raise ValueError(f"metric of type {metric['type']}: expected a ContainerResource named cpu")
        metrics.append(Metric(found["target"]["averageUtilization"] / 100))
    behavior = spec["behavior"]
    return Rules(spec["minReplicas"], spec["maxReplicas"], metrics, behavior["scaleUp"], behavior["scaleDown"])


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def read_manifests() -> dict[str, Rules]:
    """The rules of each component that scales: KEDA's on CPUs, those for clusters without KEDA, and KEDA's on GPUs."""
    keda = COMPONENTS / "autoscale/scaledobject.yaml"
    return {
        "autoscale": read_scaled_object(keda),
        "autoscale-hpa": read_autoscaler(COMPONENTS / "autoscale-hpa/horizontalpodautoscaler.yaml"),
        "autoscale-gpu": read_scaled_object(COMPONENTS / "autoscale-gpu/scaledobject.yaml", keda),
    }


class Usage(NamedTuple):
    """What the autoscaler sees of the replicas at one moment."""

    cpu: Sequence[float]  # share of its CPU request that each ready replica uses
    starting: int  # replicas that are not ready


class Autoscaler:
    """One autoscaler with its memory of what it recommended and did."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._recommended: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def sync(self, at: float, current: int, usage: Usage, value_of: Callable[[str], float | None]) -> int:
        """The number of replicas that there should be at a second that rises from call to call.

        `current` ones are there, ready or not; `value_of` gives the value of a PromQL query.
        """
        if not self._recommended:
            self._recommended.append((at, current))  # a new controller begins with what it finds
        asked = []
        for metric in self._rules.metrics:
            if metric.query is None:
                asked.append(cpu_replicas(metric.target, current, usage))
            else:
                value = value_of(metric.query)
                asked.append(current if value is None else average_value_replicas(metric.target, current, value))
        stable = self._stabilise(at, current, self._clamp(max(asked)))
        wanted = self._clamp(self._limit(at, current, stable))
        if wanted != current:
            self._changes.append((at, wanted - current))
        return wanted

    def _clamp(self, replicas: int) -> int:
        return max(self._rules.least, min(self._rules.most, replicas))

    def _stabilise(self, at: float, current: int, desired: int) -> int:
        """The recommendation nearest to today's number within each direction's window."""
        lowest = min([desired, *self._since(at, self._rules.up)])
        highest = max([desired, *self._since(at, self._rules.down)])
        self._recommended.append((at, desired))
        return min(max(current, lowest), highest)

    def _since(self, at: float, behavior: Document) -> list[int]:
        start = at - behavior["stabilizationWindowSeconds"]
        return [desired for time, desired in self._recommended if time > start]

    def _limit(self, at: float, current: int, desired: int) -> int:
        if desired > current:
            return min(desired, max(current, math.ceil(max(self._bounds(at, current, self._rules.up, 1)))))
        return max(desired, min(current, math.floor(min(self._bounds(at, current, self._rules.down, -1)))))

    def _bounds(self, at: float, current: int, behavior: Document, sign: int) -> Iterator[float]:
        """How far each policy lets the number go, from what it was when the policy's period began."""
        for policy in behavior["policies"]:
            begin = at - policy["periodSeconds"]
            start = current - sum(change for time, change in self._changes if time > begin)
            step = policy["value"] if policy["type"] == "Pods" else start * policy["value"] / 100
            yield start + sign * step


def average_value_replicas(target: float, current: int, value: float) -> int:
    """As `GetExternalPerPodMetricReplicas`: a sum over all replicas, and what one should have of it."""
    if abs(value / (target * current) - 1) <= TOLERANCE:
        return current
    return math.ceil(value / target)


def cpu_replicas(target: float, current: int, usage: Usage) -> int:
    """As `GetResourceReplicas`: replicas that are not ready count as idle where the others ask for more."""
    if not usage.cpu:
        return current
    ratio = sum(usage.cpu) / len(usage.cpu) / target
    if ratio > 1 and usage.starting:
        counted = len(usage.cpu) + usage.starting
        ratio = sum(usage.cpu) / counted / target
        if ratio <= 1 + TOLERANCE:
            return current
        return max(current, math.ceil(ratio * counted))
    if abs(ratio - 1) <= TOLERANCE:
        return current
    return math.ceil(ratio * len(usage.cpu))
