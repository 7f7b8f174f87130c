"""What can be known of the image and the compose file without an engine; the load that goes with them.

`make container-check` builds and runs the image.
"""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.lib.server import free_port
from deploy import load, release
from deploy.release import PLACES, versions, write_version
from service.settings import Settings
from tests.deploy.tools import DEPLOY, ROOT, VERSION, run, seconds_to_drain, tool
from tests.service.fake_engine import write_fake_artifact
from tests.service.process import fake_server


def test_no_place_is_forgotten() -> None:
    """Whatever below deploy/ names our image or version with a number is in the list."""
    files = [path for path in (ROOT / "deploy").rglob("*") if path.suffix in {".yaml", ".conf", ".json"}]
    ours = re.compile(r"(polyhead(-\w+)?[:@, ]|newTag: |version: )[^\n]*\d+\.\d+\.\d+")
    holders = {path.relative_to(ROOT).as_posix() for path in files if ours.search(path.read_text())}
    assert holders - {"deploy/grafana/polyhead.json"} <= set(PLACES)


def test_every_place_has_the_projects_version_and_a_release_changes_all_of_them(tmp_path: Path) -> None:
    for name in PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    before = list(versions())
    assert {name for name, _ in before} == set(PLACES)
    assert {version for _, version in before} == {VERSION}
    write_version("12.34.56", tmp_path)
    assert list(versions(tmp_path)) == [(name, "12.34.56") for name, _ in before]


NEVER_SERVED = {"torch", "onnx", "pip", "setuptools", "huggingface-hub", "hf-xet", "fsspec", "transformers"}


def pins(text: str) -> dict[str, str]:
    """Versions by name, of a lock or of constraints.txt."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def test_dockerfile_is_clean() -> None:
    run(tool("hadolint"), "--no-color", "Dockerfile")


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("cpu", ("cpu", "server", "tracing")),
        ("exporter", ("cpu", "server", "export", "verify")),
        ("gpu", ("gpu", "server", "tracing")),
    ],
)
def test_images_hold_what_is_asked_for_at_the_versions_that_are_tested(name: str, extras: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    tested, locked = (pins(path.read_text()) for path in (ROOT / "constraints.txt", DEPLOY / f"locks/{name}.txt"))
    assert {package: version for package, version in locked.items() if tested.get(package, version) != version} == {}
    assert {canonicalize_name(Requirement(text).name) for text in asked} - locked.keys() <= {"torch"}  # comes by itself
    assert name == "exporter" or not locked.keys() & NEVER_SERVED


def test_what_the_dockerfile_copies_is_sent_to_the_builder() -> None:
    """Else a build ends with "no items matching"."""
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sent = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    for path in " ".join(copied).split():
        assert any(Path(path).match(pattern) for pattern in sent), path
        assert (ROOT / path).exists()


def test_a_crowd_of_callers_makes_no_container_unhealthy_that_has_an_admin_port(tmp_path: Path) -> None:
    port, admin_port = str(free_port()), str(free_port())
    flags = ("--port", port, "--admin-port", admin_port, "--max-connections", "1")
    with fake_server(write_fake_artifact(tmp_path), *flags).wait_until_ready() as server, server.connect():
        assert health_check(POLYHEAD_PORT=port, POLYHEAD_ADMIN_PORT=admin_port) == 0
        assert health_check(POLYHEAD_PORT=port) == 1
    assert health_check(POLYHEAD_PORT=port, POLYHEAD_ADMIN_PORT=admin_port) == 1


def health_check(**environment: str) -> int:
    """Exit code of the image's own check."""
    found = re.search(r"^HEALTHCHECK .*? CMD (\[.*?\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE | re.DOTALL)
    assert found
    _, *arguments = json.loads(found[1].replace("\\\n", ""))
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, timeout=60, check=False).returncode  # noqa: S603 - ours


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


def test_every_request_is_answered(tmp_path: Path) -> None:
    with fake_server(write_fake_artifact(tmp_path)) as server:
        host, port = server.wait_until_ready().address
        found = load.run(f"{host}:{port}", rate=200, seconds=1)
    assert {"200", "422"} <= set(found) <= {"200", "422", "429"}
    assert found["200"] > found["422"]


def test_a_service_that_is_gone_ends_nothing() -> None:
    assert set(load.run("127.0.0.1:1", rate=100, seconds=0.1)) <= {"ConnectionRefusedError"}
    assert load.main(["--url", "http://127.0.0.1:1", "--seconds", "0.05"]) == 0


@pytest.mark.parametrize(
    ("main", "given", "message"),
    [
        *((release.main, version, "expected MAJOR.MINOR.PATCH") for version in ("1.2", "v1.2.3", "1.2.3rc1")),
        *(
            (load.main, f"{flag} --seconds=0", "expected --url http://HOST:PORT and a --rate above 0")
            for flag in ("--url=localhost:8000", "--url=https://a", "--rate=0")
        ),
    ],
)
def test_what_is_no_version_address_or_rate_is_refused(
    main: Callable[[list[str]], int], given: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(given.split())
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_it_says_what_it_saw_when_it_is_told_to_end(told: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        words = [sys.executable, "-m", "deploy.load", "--url", f"http://127.0.0.1:{service.getsockname()[1]}"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 - ours
        with process:
            service.accept()[0].close()  # it runs
            service.close()
            process.send_signal(told)
            try:
                said, complaints = process.communicate(timeout=30)
            finally:
                process.kill()
    assert (process.returncode, complaints) == (0, "")
    assert " x " in said
