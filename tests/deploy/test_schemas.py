"""Every manifest against published schemas: Kubernetes' own of two versions, and the operators' types."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.cluster import COMPONENTS, MODELS, OVERLAYS, Resource, component, overlay, resources
from tests.deploy.tools import run, tool

VERSIONS = ("1.30", "1.37")  # the oldest that has preStop.sleep, and the newest with schemas
CUSTOM = {"HTTPRoute", "ScaledObject", "PodMonitor", "PrometheusRule"}
HERE = Path(__file__).parent / "resources"


def validate(text: str, version: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """kubernetes-validate: unknown fields are errors, unknown kinds warnings."""
    path = folder / "rendered.yaml"
    path.write_text(text)
    command = [tool("kubernetes-validate"), "--strict", "-k", version, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - found above


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_everything(version: str, tmp_path: Path) -> None:
    texts = [*map(overlay, (*OVERLAYS, MODELS)), *map(component, COMPONENTS)]
    done = validate("---\n".join(texts), version, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = done.stdout + done.stderr
    known = [item for text in texts for item in resources(text) if item["kind"] not in CUSTOM]
    assert report.count("passed for resource") == len(known)
    assert {line.split("for kind ")[1].split()[0] for line in report.splitlines() if "Couldn't find" in line} == CUSTOM


Check = Callable[[list[Resource]], str]


@pytest.fixture(scope="module")
def check_custom(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """What the operators' types have against resources; the types are installed for this run, at locked versions."""
    node, npm = (tool(name, "Node.js brings it") for name in ("node", "npm"))
    folder = tmp_path_factory.mktemp("operators")
    shutil.copytree(HERE, folder, dirs_exist_ok=True)
    command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--engine-strict=false", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603 - npm
    assert done.returncode == 0, done.stdout + done.stderr

    def check(items: list[Resource]) -> str:
        return run(node, folder / "check.mjs", data=json.dumps(items))

    return check


def custom_resources() -> list[Resource]:
    texts = overlay("production"), overlay(MODELS), component("autoscale-gpu")
    return [item for text in texts for item in resources(text) if item["kind"] in CUSTOM]


@pytest.mark.slow
def test_operators_take_their_resources(check_custom: Check) -> None:
    assert {item["kind"] for item in custom_resources()} == CUSTOM
    assert check_custom(custom_resources()) == ""
