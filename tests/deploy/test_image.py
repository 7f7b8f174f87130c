"""What can be known of the image without building it; `make container-check` builds and runs it."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.lib.server import free_port
from tests.deploy.tools import DEPLOY, ROOT, run, tool
from tests.service.fake_engine import write_fake_artifact
from tests.service.process import fake_server

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
