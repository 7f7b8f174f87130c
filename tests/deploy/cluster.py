"""What kustomize makes of deploy/kubernetes: overlays as they stand, and components on the base alone."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.tools import DEPLOY, run, tool

KUBERNETES = DEPLOY / "kubernetes"
MODELS = "models"  # the overlay with several Deployments
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir() if path.is_dir() and path.name != MODELS)
COMPONENTS = sorted(one.name for one in (KUBERNETES / "components").iterdir() if (one / "kustomization.yaml").exists())

Resource = dict[str, Any]


@cache
def overlay(name: str) -> str:
    """YAML of an overlay."""
    return run(tool("kubectl"), "kustomize", KUBERNETES / "overlays" / name)


@cache
def component(name: str, namespace: str = "polyhead") -> str:
    """YAML of the base with one component."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kustomization.yaml").write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "kustomize.config.k8s.io/v1beta1",
                    "kind": "Kustomization",
                    "namespace": namespace,
                    "resources": [os.path.relpath(KUBERNETES / "base", Path(folder).resolve())],
                    "components": [os.path.relpath(KUBERNETES / "components" / name, Path(folder).resolve())],
                }
            )
        )
        return run(tool("kubectl"), "kustomize", folder)


@cache
def resources(text: str) -> list[Resource]:
    """Nobody may change them: a dashboard among them takes seconds to read, so they are read once."""
    return list(yaml.load_all(text, yaml.CSafeLoader))


def of_kind(text: str, kind: str) -> list[Resource]:
    return [item for item in resources(text) if item["kind"] == kind]


def one(text: str, kind: str, name: str = "polyhead") -> Resource:
    """The resource of that kind and name, without the hash that kustomize may add."""
    found = [item for item in of_kind(text, kind) if item["metadata"]["name"].startswith(name)]
    assert len(found) == 1, f"{len(found)} of kind {kind}"
    return found[0]


def pod(text: str) -> Resource:
    found: Resource = one(text, "Deployment")["spec"]["template"]
    return found


def container(text: str) -> Resource:
    found: Resource = pod(text)["spec"]["containers"][0]
    return found


def containers(text: str) -> Iterator[Resource]:
    yield from pod(text)["spec"].get("initContainers", ())
    yield from pod(text)["spec"]["containers"]


def settings(text: str) -> Mapping[str, str]:
    """The service's variables with a value of their own."""
    name = container(text)["envFrom"][0]["configMapRef"]["name"]
    config: dict[str, str] = one(text, "ConfigMap", name)["data"]
    return config | {entry["name"]: entry["value"] for entry in container(text).get("env", ()) if "value" in entry}
