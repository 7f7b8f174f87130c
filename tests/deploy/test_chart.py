"""The Helm chart renders what kustomize renders: with `helm` if it is there, else with the few words that it uses."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.cluster import Resource, overlay, resources
from tests.deploy.tools import DEPLOY, run

CHART = DEPLOY / "chart"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
EACH_SETTING = """
{{- range $name, $value := .Values.settings }}
  {{ $name }}: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}"""


def render(values: dict[str, Any], namespace: str, folder: Path) -> dict[tuple[str, str], Resource]:
    """What an installation has, by kind and name."""
    if helm := shutil.which("helm"):
        (folder / "values.yaml").write_text(yaml.safe_dump(values))
        text = run(helm, "template", "polyhead", CHART, "--namespace", namespace, "--values", folder / "values.yaml")
    else:
        templates = sorted((CHART / "templates").glob("*.yaml"))
        text = "\n---\n".join(_fill_in(path.read_text(), values, namespace) for path in templates)
    return {(item["kind"], item["metadata"]["name"]): item for item in resources(text) if item}


def _fill_in(text: str, values: dict[str, Any], namespace: str) -> str:
    """Go's templates as far as the chart uses them; anything else is an error."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    def look_up(name: str) -> Any:
        found: Any = {
            "Values": values,
            "Release": {"Namespace": namespace},
            "Chart": {"AppVersion": chart["appVersion"]},
        }
        for key in name.removeprefix(".").split("."):
            found = found[key]
        return found

    def value(match: re.Match[str]) -> str:
        call, name, _, then, number = match.groups()
        if call == ".Files.Get":
            found = (CHART / name.strip('"')).read_text()
        else:
            found = yaml.safe_dump(look_up(name)).rstrip("\n") if call == "toYaml" else str(look_up(name))
        if then == "indent":
            return "\n".join(" " * int(number) + line if line else line for line in found.split("\n"))
        return {None: found, "quote": f'"{found}"', "sha256sum": hashlib.sha256(found.encode()).hexdigest()}[then]

    def block(match: re.Match[str]) -> str:
        negated, name, inside = match.groups()
        return inside if bool(look_up(name)) != bool(negated) else ""

    settings = "".join(f'\n  {name}: "{given}"' for name, given in values["settings"].items())
    text = text.replace(EACH_SETTING, settings)
    while (
        filled := re.sub(r"\n?\{\{- if (not )?(\S+) \}\}((?:(?!\{\{- if).)*?)\n\{\{- end \}\}", block, text, flags=re.S)
    ) != text:
        text = filled
    return re.sub(r'\{\{ (?:(toYaml|\.Files\.Get) )?(\.\S+|"\S+")( \| (\w+)(?: (\d+))?)? \}\}', value, text)


def plain(item: Resource) -> Resource:
    """Without what the two tools add each in its own way: a hash in the name of the settings, or a sum of them."""
    text = re.sub(
        r"\bpolyhead-(?!dashboard|keys|metrics)[0-9a-z]{10}\b", "polyhead", yaml.dump(item, Dumper=yaml.CSafeDumper)
    )
    found: Resource = yaml.load(text, yaml.CSafeLoader)
    if item["kind"] == "Deployment":
        found["spec"]["template"]["metadata"]["annotations"].pop("checksum/settings", None)
    if dashboard := found.get("data", {}).get("polyhead.json"):  # the chart's is on one line
        found["data"]["polyhead.json"] = json.loads(dashboard)
    found["metadata"].setdefault("namespace", "polyhead")
    return found


def test_defaults_are_the_production_overlay(tmp_path: Path) -> None:
    rendered = render(VALUES, "polyhead", tmp_path)
    expected = [plain(item) for item in resources(overlay("production")) if item["kind"] != "Namespace"]
    by_name = {(item["kind"], item["metadata"]["name"]): item for item in expected}
    assert {key: plain(item) for key, item in rendered.items()} == by_name


def test_values_change_what_they_name(tmp_path: Path) -> None:
    off = {"autoscaling": {"enabled": False}, "monitoring": {"enabled": False}, "keysSecret": ""}
    other = {"image": "other:1", "terminationGracePeriodSeconds": 150}
    # Numbers as `--set` and a file of values give them; an API server refuses a ConfigMap that has any.
    numbers = {
        "POLYHEAD_ADMIN_PORT": 9001,
        "POLYHEAD_WORKERS": 4,
        "POLYHEAD_MAX_HELD_BODY_BYTES": 134217728,
        "POLYHEAD_TRACE_SHARE": 0.5,
    }
    settings = {**VALUES["settings"], **numbers}
    found = render({**VALUES, **off, **other, "settings": settings}, "elsewhere", tmp_path)
    assert {kind for kind, _ in found} & {"ScaledObject", "PodMonitor", "PrometheusRule"} == set()
    assert {item["metadata"]["namespace"] for item in found.values()} == {"elsewhere"}
    spec = found["Deployment", "polyhead"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["replicas"], container["image"]) == (2, "other:1")
    assert "volumeMounts" not in container
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"http": 8000, "admin": 9001}
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 150
    assert found["ConfigMap", "polyhead"]["data"] == {name: str(value) for name, value in settings.items()}


def test_the_scaler_asks_about_its_own_namespace(tmp_path: Path) -> None:
    scaler = render(VALUES, "elsewhere", tmp_path)["ScaledObject", "polyhead"]
    for trigger in scaler["spec"]["triggers"]:
        assert set(re.findall(r'namespace="([^"]+)"', trigger["metadata"]["query"])) == {"elsewhere"}
