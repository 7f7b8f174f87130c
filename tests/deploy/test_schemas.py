"""Every manifest against published schemas: Kubernetes' own of two versions, and the operators' types."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.cluster import COMPONENTS, MODELS, OVERLAYS, component, overlay, resources
from tests.deploy.tools import install_packages, run, tool

VERSIONS = ("1.30", "1.37")  # the oldest that has preStop.sleep, and the newest with schemas
CUSTOM = {"HTTPRoute", "ScaledObject", "PodMonitor", "PrometheusRule"}


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_everything(version: str, tmp_path: Path) -> None:
    """kubernetes-validate: unknown fields are errors, unknown kinds warnings."""
    texts = [*map(overlay, (*OVERLAYS, MODELS)), *map(component, COMPONENTS)]
    items = {json.dumps(item): item for text in texts for item in resources(text)}  # each once: some are large
    path = tmp_path / "rendered.yaml"
    path.write_text(yaml.dump_all(items.values(), Dumper=yaml.CSafeDumper))
    command = [tool("kubernetes-validate"), "--strict", "-k", version, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - found above
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    known = [item for item in items.values() if item["kind"] not in CUSTOM]
    assert report.count("passed for resource") == len(known)
    assert {line.split("for kind ")[1].split()[0] for line in report.splitlines() if "Couldn't find" in line} == CUSTOM


@pytest.mark.slow
def test_operators_take_their_resources(tmp_path: Path) -> None:
    """By the operators' own types."""
    node = install_packages(Path(__file__).with_name("resources"), tmp_path)
    texts = overlay("production"), overlay(MODELS), component("autoscale-gpu")
    custom = [item for text in texts for item in resources(text) if item["kind"] in CUSTOM]
    assert {item["kind"] for item in custom} == CUSTOM
    assert run(node, tmp_path / "check.mjs", data=json.dumps(custom)) == ""
