"""What every overlay promises, and every manifest against published schemas."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from model.artifact import Artifact
from service.observability import metrics as metric_names
from service.settings import Settings, misspelt_variables
from tests.deploy.cluster import (
    COMPONENTS,
    MODELS,
    OVERLAYS,
    component,
    container,
    containers,
    of_kind,
    one,
    overlay,
    pod,
    resources,
    settings,
)
from tests.deploy.tools import DEPLOY, install_packages, most_memory, run, seconds_to_drain, tool
from tests.hub import MODEL, serve_hub
from tests.service.routes.test_encode_tasks import write_table

each_overlay_and_component = pytest.mark.parametrize("name", [*OVERLAYS, *COMPONENTS])


@pytest.fixture(params=OVERLAYS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def text(name: str) -> str:
    return overlay(name) if name in OVERLAYS else component(name)


@pytest.fixture
def read(text: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The service's settings under an overlay's variables."""
    for variable, value in settings(text).items():
        monkeypatch.setenv(variable, value)
    return Settings(model=Path("/model"))  # type: ignore[call-arg]  # the others come from the environment


def bytes_of(quantity: str) -> int:
    return int(quantity[:-2]) * {"Mi": 2**20, "Gi": 2**30}[quantity[-2:]]


def test_settings_are_the_services(text: str, read: Settings) -> None:
    given, found = settings(text), container(text)
    assert misspelt_variables(given) == {}
    assert str(read.drain_delay).removesuffix(".0") == given["POLYHEAD_DRAIN_DELAY"]
    ports = {port["name"]: port["containerPort"] for port in found["ports"]}
    assert ports == {"http": read.port, "admin": read.admin_port}
    assert pod(text)["spec"]["enableServiceLinks"] is False  # else POLYHEAD_PORT is the Service's address
    # Callers keep no probe out: the admin port has connections of its own, and callers are led to the other one.
    assert {found[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "readiness", "liveness")} == {"admin"}
    assert [port["targetPort"] for port in one(text, "Service")["spec"]["ports"]] == ["http"]


def test_an_end_has_time_for_all_its_steps(text: str, read: Settings) -> None:
    found = container(text)
    probe, before_drain = found["readinessProbe"], found["lifecycle"]["preStop"]["sleep"]["seconds"] + read.drain_delay
    assert pod(text)["spec"]["terminationGracePeriodSeconds"] > before_drain + seconds_to_drain(read)
    assert read.shutdown_timeout >= read.request_timeout
    # it serves on until the readiness probe has noticed
    assert before_drain > probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]


@each_overlay_and_component
def test_pods_are_restricted(text: str) -> None:
    """The "restricted" level of the Pod Security Standards, and a root file system that no process writes."""
    spec = pod(text)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert all(volume.keys() & {"emptyDir", "configMap", "secret"} for volume in spec.get("volumes", ()))
    for found in containers(text):
        locked = {"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert found["securityContext"] == {"allowPrivilegeEscalation": False, **locked}


def test_selectors_mean_the_pods(text: str) -> None:
    labels = pod(text)["metadata"]["labels"]
    spread = pod(text)["spec"]["topologySpreadConstraints"]
    kinds = ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor")
    specs = [item["spec"] for item in resources(text) if item["kind"] in kinds]
    selectors = [constraint["labelSelector"] for constraint in spread]
    selectors += [spec.get("selector") or spec["podSelector"] for spec in specs]
    for selector in (given.get("matchLabels", given) for given in selectors):
        assert selector
        assert selector.items() <= labels.items()
        assert "app.kubernetes.io/version" not in selector  # a Deployment's selector cannot change, a version does


def test_nothing_goes_out_and_prometheus_alone_reaches_the_metrics(name: str, text: str) -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in of_kind(text, "NetworkPolicy")}
    ways_out = {called: spec["egress"] for called, spec in policies.items() if "Egress" in spec["policyTypes"]}
    assert ways_out.pop("polyhead") == []
    assert ways_out.keys() == ({"polyhead-model"} if name == "hub" else set())
    ways_in = {called: spec["ingress"] for called, spec in policies.items() if "Ingress" in spec["policyTypes"]}
    ports = {called: [port["port"] for rule in rules for port in rule["ports"]] for called, rules in ways_in.items()}
    assert ports == {"polyhead": ["http"]} | ({"polyhead-metrics": ["admin"]} if name == "production" else {})


def test_cores_and_memory_are_enough(text: str, read: Settings) -> None:
    """The event loop has half a core next to the workers, and no limit stops a batch in its middle."""
    given = container(text)["resources"]
    assert given["requests"]["cpu"] == f"{1000 * read.workers + 500}m"
    assert "cpu" not in given["limits"]
    assert given["limits"]["memory"] == given["requests"]["memory"]
    assert most_memory(read) < bytes_of(given["limits"]["memory"])


@each_overlay_and_component
def test_what_a_pod_may_write_is_bounded_and_is_enough_for_its_volumes(name: str, text: str) -> None:
    """What lies in an emptyDir counts against the limit of the whole pod, which is evicted beyond it."""
    volumes = sum(bytes_of(v["emptyDir"]["sizeLimit"]) for v in pod(text)["spec"].get("volumes", ()) if "emptyDir" in v)
    for found in containers(text):
        given = found["resources"]
        assert bytes_of(given["requests"]["ephemeral-storage"]) <= bytes_of(given["limits"]["ephemeral-storage"])
        assert bytes_of(given["limits"]["ephemeral-storage"]) > volumes
    assert (name in {"volume", "export", "hub"}) == bool(volumes)


@pytest.mark.parametrize("namespace", ["polyhead", "elsewhere"])
@pytest.mark.parametrize("name", ["autoscale", "autoscale-gpu"])
def test_scales_on_metrics_that_the_service_has_in_its_own_namespace(name: str, namespace: str) -> None:
    text = component(name, namespace)
    spec = one(text, "ScaledObject")["spec"]
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
    assert one(text, "Deployment")["metadata"]["namespace"] == namespace


@pytest.mark.parametrize("name", ["production", MODELS])
def test_every_deployment_is_a_job_that_the_rules_know(name: str) -> None:
    """Else models differ, errors of one are lost among the answers of another, or an alert says that all are absent."""
    (monitor,) = of_kind(overlay(name), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (relabeling,) = endpoint["relabelings"]
    assert relabeling["sourceLabels"] == ["__meta_kubernetes_namespace", "__meta_kubernetes_pod_controller_name"]
    (known,) = set(re.findall(r'up\{job=~"(.*?)"', (DEPLOY / "prometheus/alerts.yaml").read_text()))
    jobs = set()
    for deployment in of_kind(overlay(name), "Deployment"):
        namespace, called = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        controller = relabeling["separator"].join((namespace, f"{called}-5d8f9c7b64"))
        job = re.sub(f"^(?:{relabeling['regex']})$", relabeling["replacement"].replace("$", "\\"), controller)
        assert job == f"{namespace}/{called}"  # as the rule for what kube-state-metrics knows names it
        assert re.fullmatch(known, job)
        jobs.add(job)
    assert len(jobs) == len(of_kind(overlay(name), "Deployment"))


def test_the_hubs_model_is_exported_before_it_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The init container's own command makes what the service is told to serve, here from a hub of the test's.

    The model is a table of vectors: no export is quicker.
    """
    text = overlay("hub")
    init, main = containers(text)
    (source,) = init["envFrom"]
    given = one(text, "ConfigMap", "polyhead-export")["data"]
    assert source["configMapRef"]["name"].startswith("polyhead-export")
    values = {**given, "MODEL": MODEL}
    command = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], part) for part in init["command"] + init["args"]]
    served = settings(text)["POLYHEAD_MODEL"]
    assert served in command
    command = [part.replace("/model/", f"{tmp_path}/") for part in command]
    with serve_hub(write_table(tmp_path / "table", "sentence-transformers")) as hub:
        for name, value in hub.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        run(Path(sys.executable).with_name(command[0]), *command[1:])
    assert Artifact.open(tmp_path / Path(served).name).manifest.precision == given["PRECISION"]
    assert {mount["mountPath"] for mount in init["volumeMounts"]} == {"/model", "/cache"}
    assert main["volumeMounts"] == [{"name": "model", "mountPath": "/model", "readOnly": True}]


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
