"""The rules as they stand in the manifests, and those that the simulator refuses to guess at."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.autoscaling.replicas import CPU, GPU
from deploy.autoscaling.rules import COMPONENTS, cpu_only, keda, keda_gpu, read_autoscaler, read_scaled_object
from tests.deploy.cluster import component, one

KEDA = COMPONENTS / "autoscale/scaledobject.yaml"
HPA = COMPONENTS / "autoscale-hpa/horizontalpodautoscaler.yaml"


def test_thresholds_follow_from_what_a_replica_does() -> None:
    """deploy/README.md, Sizing: 0.7 of what it sustains, and a tenth of a second in the queue."""
    targets = {metric.name: metric.target for metric in keda().metrics}
    assert targets == {"busy-workers": 0.7 * CPU.workers, "queued-tokens": 0.1 * CPU.tokens_per_second}
    targets = {metric.name: metric.target for metric in keda_gpu().metrics}
    rate = GPU.tokens_per_second
    assert targets == {"computed-tokens": pytest.approx(0.7 * rate), "queued-tokens": 0.1 * rate}
    (cpu,) = cpu_only().metrics
    busy = 0.7 * (CPU.workers + CPU.cpu_besides) / CPU.cpu_request
    assert cpu.target == pytest.approx(busy, abs=0.01)


def test_one_batch_of_a_gpu_is_no_reason_for_another() -> None:
    queued = next(metric for metric in keda_gpu().metrics if metric.name == "queued-tokens")
    assert queued.target > 16_384


def test_kustomize_renders_the_rules_that_are_simulated(tmp_path: Path) -> None:
    rendered = tmp_path / "scaledobject.yaml"
    rendered.write_text(yaml.safe_dump(one(component("autoscale-gpu"), "ScaledObject")))
    assert read_scaled_object(rendered) == keda_gpu()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("triggers", 0, "type"), "cron", "type prometheus"),
        (("triggers", 0, "metricType"), "Value", "AverageValue"),
        (("advanced", "horizontalPodAutoscalerConfig", "behavior", "scaleUp", "selectPolicy"), "Min", "expected Max"),
    ],
)
def test_unknown_rules_of_keda_are_refused(place: tuple[str, ...], value: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_scaled_object(changed(KEDA, place, value, tmp_path))


def test_unknown_metrics_of_an_autoscaler_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a ContainerResource named cpu"):
        read_autoscaler(changed(HPA, ("metrics", 0, "type"), "External", tmp_path))


def changed(source: Path, place: tuple[Any, ...], value: str, folder: Path) -> Path:
    document = yaml.safe_load(source.read_text())
    part = document["spec"]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    path = folder / source.name
    path.write_text(yaml.safe_dump(document))
    return path
