"""Kubernetes' HorizontalPodAutoscaler: from metrics to a number of replicas.

Follows `pkg/controller/podautoscaler` of Kubernetes 1.34: `replica_calculator.go` for what a metric asks for,
`horizontal.go` for stabilisation windows and policies. It knows neither Prometheus nor replicas.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

COMPONENTS = Path(__file__).parents[1] / "kubernetes/components"

Source = Literal["query", "cpu"]

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure that asks for replicas.

    Attributes:
        name: of the metric.
        source: `query` is PromQL over all replicas, `cpu` the share of the CPU request that each replica uses.
        target: what one replica should have of it.
        query: the PromQL.
    """

    name: str
    source: Source
    target: float
    query: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """At most `value` replicas, or per cent of them, in a period of `period` seconds."""

    kind: Literal["Percent", "Pods"]
    value: int
    period: float


@dataclass(frozen=True, slots=True)
class Direction:
    """How fast the number of replicas may move one way.

    Attributes:
        window: seconds of recommendations of which the most cautious one counts.
        policies: of which the one that allows most counts.
    """

    window: float
    policies: tuple[Policy, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that one autoscaler is told."""

    least: int
    most: int
    metrics: tuple[Metric, ...]
    up: Direction
    down: Direction


def read_scaled_object(path: Path, base: Path | None = None) -> Rules:
    """The rules of a ScaledObject, laid over another one where a component patches it.

    Raises:
        ValueError: it uses what the simulator does not know.
    """
    spec = dict(_load(base)["spec"]) if base else {}
    spec |= _load(path)["spec"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    metrics = tuple(_read_trigger(trigger) for trigger in spec["triggers"])
    return _rules(spec["minReplicaCount"], spec["maxReplicaCount"], metrics, behavior)


def read_autoscaler(path: Path) -> Rules:
    """The rules of a HorizontalPodAutoscaler; likewise."""
    spec = _load(path)["spec"]
    metrics = tuple(_read_metric(metric) for metric in spec["metrics"])
    return _rules(spec["minReplicas"], spec["maxReplicas"], metrics, spec["behavior"])


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _rules(least: int, most: int, metrics: tuple[Metric, ...], behavior: Document) -> Rules:
    return Rules(least, most, metrics, _direction(behavior["scaleUp"]), _direction(behavior["scaleDown"]))


def _read_trigger(trigger: Document) -> Metric:
    if (trigger["type"], trigger["metricType"]) != ("prometheus", "AverageValue"):
        raise ValueError(f"trigger {trigger.get('name')}: expected type prometheus with metricType AverageValue")
    given = trigger["metadata"]
    return Metric(trigger["name"], "query", float(given["threshold"]), given["query"])


def _read_metric(metric: Document) -> Metric:
    found = metric.get("containerResource", {})
    if metric["type"] != "ContainerResource" or found["name"] != "cpu":
        raise ValueError(f"metric of type {metric['type']}: expected a ContainerResource named cpu")
    return Metric("cpu", "cpu", found["target"]["averageUtilization"] / 100)


def _direction(given: Document) -> Direction:
    if given.get("selectPolicy", "Max") != "Max":
        raise ValueError(f"selectPolicy is {given['selectPolicy']}: expected Max")
    policies: Sequence[Document] = given["policies"]
    return Direction(
        given["stabilizationWindowSeconds"],
        tuple(Policy(policy["type"], policy["value"], policy["periodSeconds"]) for policy in policies),
    )


def keda() -> Rules:
    """KEDA's rules for replicas on a CPU."""
    return read_scaled_object(COMPONENTS / "autoscale/scaledobject.yaml")


def keda_gpu() -> Rules:
    """KEDA's rules for replicas with a GPU each."""
    base = COMPONENTS / "autoscale/scaledobject.yaml"
    return read_scaled_object(COMPONENTS / "autoscale-gpu/scaledobject.yaml", base)


def cpu_only() -> Rules:
    """The rules for clusters without KEDA."""
    return read_autoscaler(COMPONENTS / "autoscale-hpa/horizontalpodautoscaler.yaml")


SYNC_SECONDS = 15.0  # --horizontal-pod-autoscaler-sync-period

TOLERANCE = 0.1  # --horizontal-pod-autoscaler-tolerance


@dataclass(frozen=True, slots=True)
class Usage:
    """What the autoscaler sees of the replicas at one moment.

    Attributes:
        cpu: share of its CPU request that each ready replica uses.
        starting: replicas that are not ready.
    """

    cpu: Sequence[float]
    starting: int


class Autoscaler:
    """One autoscaler with its memory of what it recommended and did."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._recommended: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def sync(self, at: float, current: int, usage: Usage, value_of: Callable[[str], float | None]) -> int:
        """The number of replicas that there should be.

        Args:
            at: seconds; rises from call to call.
            current: replicas that there are, ready or not.
            usage: of the CPU.
            value_of: the value of a PromQL query.
        """
        if not self._recommended:
            self._recommended.append((at, current))  # a new controller begins with what it finds
        asked = [self._ask(metric, current, usage, value_of) for metric in self._rules.metrics]
        stable = self._stabilise(at, current, self._clamp(max(asked)))
        wanted = self._clamp(self._limit(at, current, stable))
        if wanted != current:
            self._changes.append((at, wanted - current))
        return wanted

    def _ask(self, metric: Metric, current: int, usage: Usage, value_of: Callable[[str], float | None]) -> int:
        if metric.source == "cpu":
            return cpu_replicas(metric.target, current, usage)
        value = value_of(metric.query)
        return current if value is None else average_value_replicas(metric.target, current, value)

    def _clamp(self, replicas: int) -> int:
        return max(self._rules.least, min(self._rules.most, replicas))

    def _stabilise(self, at: float, current: int, desired: int) -> int:
        """The recommendation nearest to today's number within each direction's window."""
        lowest = min([desired, *self._since(at - self._rules.up.window)])
        highest = max([desired, *self._since(at - self._rules.down.window)])
        self._recommended.append((at, desired))
        return min(max(current, lowest), highest)

    def _since(self, start: float) -> list[int]:
        return [desired for time, desired in self._recommended if time > start]

    def _limit(self, at: float, current: int, desired: int) -> int:
        if desired > current:
            return min(desired, max(current, self._bound(at, current, self._rules.up, scale_up_to, max)))
        if desired < current:
            return max(desired, min(current, self._bound(at, current, self._rules.down, scale_down_to, min)))
        return current

    def _bound(
        self,
        at: float,
        current: int,
        direction: Direction,
        allowed: Callable[[Policy, int], int],
        widest: Callable[[Iterable[int]], int],
    ) -> int:
        """How far the policies let the number go, from what it was when each one's period began."""
        starts = {
            policy: current - sum(change for time, change in self._changes if time > at - policy.period)
            for policy in direction.policies
        }
        return widest([allowed(policy, start) for policy, start in starts.items()])


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


def scale_up_to(policy: Policy, start: int) -> int:
    """The most replicas that a policy allows, from those at the start of its period."""
    return start + policy.value if policy.kind == "Pods" else math.ceil(start * (1 + policy.value / 100))


def scale_down_to(policy: Policy, start: int) -> int:
    """The fewest."""
    return start - policy.value if policy.kind == "Pods" else int(start * (1 - policy.value / 100))
