"""What the manifests tell an autoscaler: its metrics, its limits, and how fast it may move.

Reads KEDA's ScaledObject and Kubernetes' HorizontalPodAutoscaler. KEDA makes the second from the first.
"""

from collections.abc import Mapping, Sequence
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
    """At most so many replicas, or so much per cent of them, in a period of so many seconds."""

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
