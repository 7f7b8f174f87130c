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
    keda,
    keda_gpu,
    read_autoscaler,
    read_scaled_object,
)
from tests.deploy.cluster import component, one

KEDA = COMPONENTS / "autoscale/scaledobject.yaml"
HPA = COMPONENTS / "autoscale-hpa/horizontalpodautoscaler.yaml"
IDLE = Usage((), 0)
FAST_UP: Document = {
    "stabilizationWindowSeconds": 0,
    "policies": [
        {"type": "Percent", "value": 100, "periodSeconds": 30},
        {"type": "Pods", "value": 2, "periodSeconds": 30},
    ],
}
SLOW_DOWN: Document = {
    "stabilizationWindowSeconds": 300,
    "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}],
}


def autoscaler() -> Autoscaler:
    return Autoscaler(Rules(2, 10, (Metric(10, "q"),), FAST_UP, SLOW_DOWN))


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


def test_policies_bound_each_period() -> None:
    made = autoscaler()
    replicas, found = 2, []
    for at in (0, 15, 30, 45, 60):
        replicas = made.sync(at, replicas, IDLE, lambda _: 100.0)
        found.append(replicas)
    assert found == [4, 4, 8, 8, 10]


def test_the_way_down_waits_for_the_window_and_goes_by_halves() -> None:
    made = autoscaler()
    replicas, found = 10, {}
    for at in range(0, 500, 15):
        replicas = made.sync(at, replicas, IDLE, lambda _: 0.0)
        found[at] = replicas
    assert found[285] == 10
    assert (found[300], found[345], found[360], found[420]) == (5, 5, 2, 2)


def test_kustomize_renders_the_rules_that_are_simulated(tmp_path: Path) -> None:
    rendered = tmp_path / "scaledobject.yaml"
    for name, rules in {"autoscale": keda(), "autoscale-gpu": keda_gpu()}.items():
        text = yaml.safe_dump(one(component(name), "ScaledObject"))
        rendered.write_text(text.replace('namespace="polyhead"', 'namespace="$(POLYHEAD_NAMESPACE)"'))
        assert read_scaled_object(rendered) == rules


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
