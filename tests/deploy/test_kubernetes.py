"""What every overlay promises, that the Helm chart is one of them, and published schemas of what is rendered."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from model.artifact import Artifact
from service.observability import metrics as metric_names
from service.settings import Settings, misspelt_variables
from tests.deploy.cluster import COMPONENTS, MODELS, OVERLAYS, Rendered, Resource, component, overlay
from tests.deploy.tools import DEPLOY, install_packages, most_memory, run, seconds_to_drain, tool
from tests.hub import MODEL, serve_hub
from tests.service.routes.test_encode_tasks import write_table

each_overlay_and_component = pytest.mark.parametrize("name", [*OVERLAYS, *COMPONENTS])


@pytest.fixture(params=OVERLAYS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rendered(name: str) -> Rendered:
    return overlay(name) if name in OVERLAYS else component(name)


@pytest.fixture
def read(rendered: Rendered, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The service's settings under an overlay's variables."""
    for variable, value in rendered.settings.items():
        monkeypatch.setenv(variable, value)
    return Settings(model=Path("/model"))  # type: ignore[call-arg]  # the others come from the environment


def bytes_of(quantity: str) -> int:
    return int(quantity[:-2]) * {"Mi": 2**20, "Gi": 2**30}[quantity[-2:]]


def test_settings_are_the_services(rendered: Rendered, read: Settings) -> None:
    given, found = rendered.settings, rendered.container
    assert misspelt_variables(given) == []
    assert str(read.drain_delay).removesuffix(".0") == given["POLYHEAD_DRAIN_DELAY"]
    ports = {port["name"]: port["containerPort"] for port in found["ports"]}
    assert ports == {"http": read.port, "admin": read.admin_port}
    assert rendered.pod["spec"]["enableServiceLinks"] is False  # else POLYHEAD_PORT is the Service's address
    # Callers keep no probe out: the admin port has connections of its own, and callers are led to the other one.
    assert {found[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "readiness", "liveness")} == {"admin"}
    assert [port["targetPort"] for port in rendered.one("Service")["spec"]["ports"]] == ["http"]


def test_an_end_has_time_for_all_its_steps(rendered: Rendered, read: Settings) -> None:
    found = rendered.container
    probe, before_drain = found["readinessProbe"], found["lifecycle"]["preStop"]["sleep"]["seconds"] + read.drain_delay
    assert rendered.pod["spec"]["terminationGracePeriodSeconds"] > before_drain + seconds_to_drain(read)
    assert read.shutdown_timeout >= read.request_timeout
    # it serves on until the readiness probe has noticed
    assert before_drain > probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]


@each_overlay_and_component
def test_pods_are_restricted(rendered: Rendered) -> None:
    """The "restricted" level of the Pod Security Standards, and a root file system that no process writes."""
    spec = rendered.pod["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert all(volume.keys() & {"emptyDir", "configMap", "secret"} for volume in spec.get("volumes", ()))
    for found in rendered.containers:
        locked = {"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert found["securityContext"] == {"allowPrivilegeEscalation": False, **locked}


def test_selectors_mean_the_pods(rendered: Rendered) -> None:
    labels = rendered.pod["metadata"]["labels"]
    spread = rendered.pod["spec"]["topologySpreadConstraints"]
    kinds = ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor")
    specs = [item["spec"] for item in rendered.of_kind(*kinds)]
    selectors = [constraint["labelSelector"] for constraint in spread]
    selectors += [spec.get("selector") or spec["podSelector"] for spec in specs]
    for selector in (given.get("matchLabels", given) for given in selectors):
        assert selector
        assert selector.items() <= labels.items()
        assert "app.kubernetes.io/version" not in selector  # a Deployment's selector cannot change, a version does


def test_nothing_goes_out_and_prometheus_alone_reaches_the_metrics(name: str, rendered: Rendered) -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in rendered.of_kind("NetworkPolicy")}
    ways_out = {called: spec["egress"] for called, spec in policies.items() if "Egress" in spec["policyTypes"]}
    assert ways_out.pop("polyhead") == []
    assert ways_out.keys() == ({"polyhead-model"} if name == "hub" else set())
    ways_in = {called: spec["ingress"] for called, spec in policies.items() if "Ingress" in spec["policyTypes"]}
    ports = {called: [port["port"] for rule in rules for port in rule["ports"]] for called, rules in ways_in.items()}
    assert ports == {"polyhead": ["http"]} | ({"polyhead-metrics": ["admin"]} if name == "production" else {})


def test_cores_and_memory_are_enough(rendered: Rendered, read: Settings) -> None:
    """The event loop has half a core next to the workers, and no limit stops a batch in its middle."""
    given = rendered.container["resources"]
    assert given["requests"]["cpu"] == f"{1000 * read.workers + 500}m"
    assert "cpu" not in given["limits"]
    assert given["limits"]["memory"] == given["requests"]["memory"]
    assert most_memory(read) < bytes_of(given["limits"]["memory"])


@each_overlay_and_component
def test_what_a_pod_may_write_is_bounded_and_is_enough_for_its_volumes(name: str, rendered: Rendered) -> None:
    """What lies in an emptyDir counts against the limit of the whole pod, which is evicted beyond it."""
    spec = rendered.pod["spec"]
    volumes = [one["emptyDir"] for one in spec.get("volumes", ()) if "emptyDir" in one]
    room = sum(bytes_of(volume["sizeLimit"]) for volume in volumes)
    for found in rendered.containers:
        requested, limit = (bytes_of(found["resources"][kind]["ephemeral-storage"]) for kind in ("requests", "limits"))
        assert limit >= requested
        assert limit > room
    assert (name in {"volume", "export", "hub"}) == bool(volumes)


@pytest.mark.parametrize("namespace", ["polyhead", "elsewhere"])
@pytest.mark.parametrize("name", ["autoscale", "autoscale-gpu"])
def test_scales_on_metrics_that_the_service_has_in_its_own_namespace(name: str, namespace: str) -> None:
    rendered = component(name, namespace)
    spec = rendered.one("ScaledObject")["spec"]
    names = {value for value in vars(metric_names).values() if isinstance(value, str)}
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"  # KEDA's default removes the others
    for trigger in spec["triggers"]:
        assert trigger["metadata"]["ignoreNullValues"] == "false"  # its default reads an empty answer as 0
        query = trigger["metadata"]["query"]
        for metric in re.findall(r"polyhead_\w+", query):
            assert re.sub("_(bucket|count)$", "", metric) in names
            is_counter = metric.endswith(("_total", "_bucket", "_count"))
            assert is_counter == (f"rate({metric}" in query)  # it only grows
        assert set(re.findall(r'namespace="([^"]+)"', query)) == {namespace}
    assert rendered.one("Deployment")["metadata"]["namespace"] == namespace


@pytest.mark.parametrize("name", ["production", MODELS])
def test_every_deployment_is_a_job_that_the_rules_know(name: str) -> None:
    """Else models differ, errors of one are lost among the answers of another, or an alert says that all are absent."""
    (monitor,) = overlay(name).of_kind("PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (relabeling,) = endpoint["relabelings"]
    assert relabeling["sourceLabels"] == ["__meta_kubernetes_namespace", "__meta_kubernetes_pod_controller_name"]
    (known,) = set(re.findall(r'up\{job=~"(.*?)"', (DEPLOY / "prometheus/alerts.yaml").read_text()))
    jobs = set()
    for deployment in overlay(name).of_kind("Deployment"):
        namespace, called = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        controller = relabeling["separator"].join((namespace, f"{called}-5d8f9c7b64"))
        job = re.sub(f"^(?:{relabeling['regex']})$", relabeling["replacement"].replace("$", "\\"), controller)
        assert job == f"{namespace}/{called}"  # as the rule for what kube-state-metrics knows names it
        assert re.fullmatch(known, job)
        jobs.add(job)
    assert len(jobs) == len(overlay(name).of_kind("Deployment"))


def test_the_hubs_model_is_exported_before_it_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The init container's own command makes what the service is told to serve, here from a hub of the test's.

    The model is a table of vectors: no export is quicker.
    """
    rendered = overlay("hub")
    init, main = rendered.containers
    (source,) = init["envFrom"]
    given = rendered.one("ConfigMap", "polyhead-export")["data"]
    assert source["configMapRef"]["name"].startswith("polyhead-export")
    values = {**given, "MODEL": MODEL}
    command = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], part) for part in init["command"] + init["args"]]
    served = rendered.settings["POLYHEAD_MODEL"]
    assert served in command
    command = [part.replace("/model/", f"{tmp_path}/") for part in command]
    with serve_hub(write_table(tmp_path / "table", "sentence-transformers")) as hub:
        for name, value in hub.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        run(Path(sys.executable).with_name(command[0]), *command[1:])
    assert Artifact.open(tmp_path / Path(served).name).manifest.precision == given["PRECISION"]
    assert {mount["mountPath"] for mount in init["volumeMounts"]} == {"/model", "/cache"}
    assert main["volumeMounts"] == [{"name": "model", "mountPath": "/model", "readOnly": True}]


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
    return by_name(item for item in yaml.load_all(text, yaml.CSafeLoader) if item)


def by_name(resources: Iterable[Resource]) -> dict[tuple[str, str], Resource]:
    return {(item["kind"], item["metadata"]["name"]): item for item in resources}


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
    hashed = r"\bpolyhead-(?!dashboard|keys|metrics)[0-9a-z]{10}\b"
    written = re.sub(hashed, "polyhead", yaml.dump(item, Dumper=yaml.CSafeDumper))
    found: Resource = yaml.load(written, yaml.CSafeLoader)
    if item["kind"] == "Deployment":
        found["spec"]["template"]["metadata"]["annotations"].pop("checksum/settings", None)
    if dashboard := found.get("data", {}).get("polyhead.json"):  # the chart's is on one line
        found["data"]["polyhead.json"] = json.loads(dashboard)
    found["metadata"].setdefault("namespace", "polyhead")
    return found


def test_defaults_are_the_production_overlay(tmp_path: Path) -> None:
    rendered = map(plain, render(VALUES, "polyhead", tmp_path).values())
    expected = [plain(item) for item in overlay("production").resources if item["kind"] != "Namespace"]
    assert by_name(rendered) == by_name(expected)


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


VERSIONS = ("1.30", "1.37")  # the oldest that has preStop.sleep, and the newest with schemas
CUSTOM = {"HTTPRoute", "ScaledObject", "PodMonitor", "PrometheusRule"}


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_everything(version: str, tmp_path: Path) -> None:
    """kubernetes-validate: unknown fields are errors, unknown kinds warnings."""
    rendered = [*map(overlay, (*OVERLAYS, MODELS)), *map(component, COMPONENTS)]
    items = {json.dumps(item): item for one in rendered for item in one.resources}  # each once: some are large
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
    rendered = overlay("production"), overlay(MODELS), component("autoscale-gpu")
    custom = [item for one in rendered for item in one.of_kind(*CUSTOM)]
    assert {item["kind"] for item in custom} == CUSTOM
    assert run(node, tmp_path / "check.mjs", data=json.dumps(custom)) == ""
