"""The autoscaler's arithmetic, on figures worked out by hand from Kubernetes' documentation; the manifests' rules."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.autoscaling.autoscaler import (
    COMPONENTS,
    Autoscaler,
    Document,
    Metric,
    Rules,
    Usage,
    average_value_replicas,
    cpu_replicas,
    read_autoscaler,
    read_manifests,
    read_scaled_object,
)
from tests.deploy.cluster import component, one

KEDA = COMPONENTS / "autoscale/scaledobject.yaml"
HPA = COMPONENTS / "autoscale-hpa/horizontalpodautoscaler.yaml"
IDLE = Usage((), 0)
FASTER = [{"type": "Percent", "value": 100, "periodSeconds": 30}, {"type": "Pods", "value": 2, "periodSeconds": 30}]
FAST_UP: Document = {"stabilizationWindowSeconds": 0, "policies": FASTER}
HALF = [{"type": "Percent", "value": 50, "periodSeconds": 60}]
SLOW_DOWN: Document = {"stabilizationWindowSeconds": 300, "policies": HALF}


@pytest.mark.parametrize(
    ("current", "value", "expected"), [(4, 41, 4), (4, 43, 4), (4, 45, 5), (4, 37, 4), (4, 35, 4), (4, 30, 3)]
)
def test_a_sum_asks_for_replicas_beyond_a_tolerance(current: int, value: float, expected: int) -> None:
    assert average_value_replicas(10, current, value) == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (Usage((0.6, 0.6), 0), 2),  # as asked
        (Usage((1.0, 1.0), 0), 4),  # ceil(2 x 1.67)
        (Usage((0.2, 0.2), 0), 1),
        (Usage((1.0, 1.0), 2), 4),  # the starting ones count as idle: 0.5 of 0.6, and no way down meanwhile
        (Usage((1.0, 1.0, 1.0), 1), 5),  # 0.75 of 0.6 over four
        (IDLE, 4),  # nothing known
    ],
)
def test_cpu_counts_starting_replicas_as_idle_on_the_way_up(usage: Usage, expected: int) -> None:
    assert cpu_replicas(0.6, len(usage.cpu) + usage.starting or 4, usage) == expected


@pytest.mark.parametrize(
    ("replicas", "value", "expected"),
    [
        (2, 100.0, {0: 4, 15: 4, 30: 8, 45: 8, 60: 10}),
        (10, 0.0, {285: 10, 300: 5, 345: 5, 360: 2, 420: 2}),
        (4, None, {0: 4, 495: 4}),
    ],
    ids=[
        "policies bound each period",
        "the way down waits for the window and goes by halves",
        "a query without an answer changes nothing",
    ],
)
def test_behavior(replicas: int, value: float | None, expected: dict[int, int]) -> None:
    made, found = Autoscaler(Rules(2, 10, [Metric(10, "q")], FAST_UP, SLOW_DOWN)), {}
    for at in range(0, 500, 15):
        found[at] = replicas = made.sync(at, replicas, IDLE, lambda _: value)
    assert found | expected == found


def test_kustomize_renders_the_rules_that_are_simulated(tmp_path: Path) -> None:
    rendered = tmp_path / "scaledobject.yaml"
    for name in ("autoscale", "autoscale-gpu"):
        text = yaml.safe_dump(one(component(name), "ScaledObject"))
        rendered.write_text(text.replace('namespace="polyhead"', 'namespace="$(POLYHEAD_NAMESPACE)"'))
        assert read_scaled_object(rendered) == read_manifests()[name]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("triggers", 0, "type"), "cron", "type prometheus"),
        (("triggers", 0, "metricType"), "Value", "AverageValue"),
        (("advanced", "horizontalPodAutoscalerConfig", "behavior", "scaleUp", "selectPolicy"), "Min", "expected Max"),
        (("metrics", 0, "type"), "External", "expected a ContainerResource named cpu"),
    ],
)
def test_unknown_rules_are_refused(place: tuple[Any, ...], value: str, message: str, tmp_path: Path) -> None:
    source, read = (HPA, read_autoscaler) if place[0] == "metrics" else (KEDA, read_scaled_object)
    document = yaml.safe_load(source.read_text())
    part = document["spec"]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (tmp_path / source.name).write_text(yaml.safe_dump(document))
    with pytest.raises(ValueError, match=message):
        read(tmp_path / source.name)
