"""The compose file, without an engine: its schema, what it mounts, and how its services are locked down."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings
from tests.deploy.tools import DEPLOY, VERSION, run, seconds_to_drain, tool

COMPOSE = DEPLOY / "compose.yaml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]


@pytest.mark.parametrize("name", ["compose.yaml", "compose.model.yaml"])
def test_schema_takes_it(name: str) -> None:
    run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / name)


def test_compose_resolves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compose = tool("docker-compose", "Debian's package of that name brings it")
    shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=shutil.ignore_patterns("kubernetes", "locks"))
    path = tmp_path / "deploy" / "compose.yaml"
    path.write_text(COMPOSE.read_text().replace("name: polyhead\n", "", 1))  # Debian's is older than that field
    monkeypatch.setenv("POLYHEAD_MODEL_DIR", str(tmp_path))
    run(compose, "-f", path, "-f", path.with_name("compose.model.yaml"), "config", "--quiet")


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_locked_down_pinned_and_find_what_they_mount(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "mem_limit" in service
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    image = service["image"]
    assert image == f"polyhead:{VERSION}" or re.fullmatch(r"docker\.io/\S+:v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}", image)
    mounts = [mount.split(":")[0] for mount in service.get("volumes", ())]
    assert [mount for mount in mounts if mount.startswith(".") and not (DEPLOY / mount).exists()] == []


def test_running_requests_may_finish() -> None:
    delay = float(SERVICES["polyhead"]["environment"]["POLYHEAD_DRAIN_DELAY"])
    period = re.fullmatch(r"(\d+)s", SERVICES["polyhead"]["stop_grace_period"])
    assert period
    assert float(period[1]) > delay + seconds_to_drain(Settings.model_construct())


def test_prometheus_takes_its_configuration() -> None:
    promtool = tool("promtool", "Debian's package prometheus brings it")
    run(promtool, "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
