"""What can be known of the image without building it; `make container-check` builds and runs it."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.lib.server import free_port
from tests.deploy.tools import DEPLOY, ROOT, VERSION, run, tool
from tests.service.fake_engine import write_fake_artifact
from tests.service.process import ServerProcess

LOCKS = ("build", "cpu", "exporter", "gpu", "tools")
ENVIRONMENT = {"sys_platform": "linux", "platform_system": "Linux", "python_version": "3.11", "extra": ""}
NEVER_SERVED = {"torch", "onnx", "pip", "setuptools", "huggingface-hub", "hf-xet", "fsspec", "transformers"}


def pins(text: str) -> dict[str, str]:
    """Versions by name, of a lock or of constraints.txt."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def lock(name: str) -> str:
    return (DEPLOY / "locks" / f"{name}.txt").read_text()


def needed(requirement: Requirement) -> Iterator[Requirement]:
    """What a requirement brings on the image's platform, as its installed metadata has it."""
    for extra in ("", *requirement.extras):
        for text in requires(requirement.name) or ():
            found = Requirement(text)
            if found.marker is None or found.marker.evaluate({**ENVIRONMENT, "extra": extra}):
                yield found


def closure(requirements: list[Requirement], left_out: set[str]) -> set[str]:
    names: set[str] = set()
    while requirements:
        requirement = requirements.pop()
        name = canonicalize_name(requirement.name)
        if name not in names and name not in left_out:
            names.add(name)
            requirements += needed(requirement)
    return names


def test_dockerfile_is_clean() -> None:
    run(tool("hadolint"), "--no-color", "Dockerfile")


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_hashes(name: str) -> None:
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", lock(name), flags=re.MULTILINE).strip())
    assert len(entries) > 5
    assert [entry for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)] == []


@pytest.mark.parametrize("name", ["cpu", "exporter", "gpu"])
def test_images_hold_the_versions_that_are_tested(name: str) -> None:
    tested = pins((ROOT / "constraints.txt").read_text())
    locked = pins(lock(name))
    assert {package: version for package, version in locked.items() if tested.get(package, version) != version} == {}


def test_cpu_image_holds_what_the_service_needs_and_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [Requirement(text) for text in (*project["dependencies"], *extras["cpu"], *extras["tracing"])]
    assert set(pins(lock("cpu"))) == closure(asked, left_out={"huggingface-hub"})


@pytest.mark.parametrize("name", ["exporter", "gpu"])
def test_other_images_hold_what_is_asked_for(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {"exporter": ("cpu", "export"), "gpu": ("gpu", "tracing")}[name]
    asked = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    names = {canonicalize_name(Requirement(text).name) for text in asked}
    assert names - pins(lock(name)).keys() <= {"torch"}  # which comes by itself


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_what_is_never_served_is_not_locked(name: str) -> None:
    assert set(pins(lock(name))) & NEVER_SERVED == set()


def test_exporter_installs_the_torch_that_is_tested() -> None:
    tested = pins((ROOT / "constraints.txt").read_text())["torch"]
    assert f" torch=={tested}\n" in (ROOT / "Dockerfile").read_text()


def test_image_is_labelled() -> None:
    """With the names of the OCI image specification's annotations."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    labels = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', dockerfile))
    assert labels == {
        "title": "Polyhead",
        "description": project["description"],
        "licenses": project["license"],
        "version": "${VERSION}",
        "revision": "${REVISION}",
        "base.name": "${PYTHON_IMAGE}",
    }
    assert f"ARG VERSION={VERSION}\n" in dockerfile


def test_a_release_is_built_with_its_revision_a_bill_of_materials_and_provenance() -> None:
    checklist = (ROOT / "docs/development.md").read_text().partition("## Releasing")[2].partition("\n## ")[0]
    command = re.search(r"`docker buildx build ([^`]+)`", checklist)
    assert command
    assert {"--sbom=true", "--provenance=mode=max", "REVISION=$(git"} <= set(command[1].split())
    assert "ARG REVISION=" in (ROOT / "Dockerfile").read_text()


def test_base_is_named_by_digest() -> None:
    base = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(base) == 1
    assert re.fullmatch(r"docker\.io/library/python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", base[0])


def test_a_crowd_of_callers_makes_no_container_unhealthy_that_has_an_admin_port(tmp_path: Path) -> None:
    port, admin_port = str(free_port()), str(free_port())
    flags = (
        "--model",
        str(write_fake_artifact(tmp_path / "model")),
        "--port",
        port,
        "--admin-port",
        admin_port,
        "--max-connections",
        "1",
    )
    with ServerProcess("tests.service.fake_server", *flags).wait_until_ready() as server, server.connect():
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
