"""What kustomize makes of deploy/kubernetes: overlays as they stand, and components on the base alone."""

import os
import tempfile
from collections.abc import Mapping
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


class Rendered:
    """Resources that kustomize makes of a folder. Nobody may change them: they are rendered and read once."""

    def __init__(self, folder: str | Path) -> None:
        text = run(tool("kubectl"), "kustomize", folder)
        self.resources: list[Resource] = list(yaml.load_all(text, yaml.CSafeLoader))

    def of_kind(self, *kinds: str) -> list[Resource]:
        return [item for item in self.resources if item["kind"] in kinds]

    def one(self, kind: str, name: str = "polyhead") -> Resource:
        """The resource of that kind and name, without the hash that kustomize may add."""
        (found,) = (item for item in self.of_kind(kind) if item["metadata"]["name"].startswith(name))
        return found

    @property
    def pod(self) -> Resource:
        found: Resource = self.one("Deployment")["spec"]["template"]
        return found

    @property
    def container(self) -> Resource:
        found: Resource = self.pod["spec"]["containers"][0]
        return found

    @property
    def containers(self) -> list[Resource]:
        return [*self.pod["spec"].get("initContainers", ()), *self.pod["spec"]["containers"]]

    @property
    def settings(self) -> Mapping[str, str]:
        """The service's variables with a value of their own."""
        name = self.container["envFrom"][0]["configMapRef"]["name"]
        given = {entry["name"]: entry["value"] for entry in self.container.get("env", ()) if "value" in entry}
        return {**self.one("ConfigMap", name)["data"], **given}


@cache
def overlay(name: str) -> Rendered:
    return Rendered(KUBERNETES / "overlays" / name)


@cache
def component(name: str, namespace: str = "polyhead") -> Rendered:
    """The base with one component."""
    with tempfile.TemporaryDirectory() as folder:
        places = {kind: os.path.relpath(KUBERNETES / kind, Path(folder).resolve()) for kind in ("base", "components")}
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": namespace,
            "resources": [places["base"]],
            "components": [f"{places['components']}/{name}"],
        }
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(document))
        return Rendered(folder)
