"""What every overlay promises: read from what kustomize renders, so from what a cluster would get."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.observability.alert import JOB
from service.observability import metric_names
from service.settings import Settings, misspelt_variables
from tests.deploy.cluster import (
    COMPONENTS,
    OVERLAYS,
    Resource,
    component,
    container,
    containers,
    one,
    overlay,
    pod,
    resources,
    settings,
)
from tests.deploy.tools import DEPLOY, VERSION, most_memory

each_overlay = pytest.mark.parametrize("name", OVERLAYS)


def read_settings(text: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in settings(text).items():
        monkeypatch.setenv(name, value)
    return Settings(model=Path("/model"))  # type: ignore[call-arg]  # the others come from the environment


@each_overlay
def test_settings_are_the_services(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings(overlay(name))
    assert misspelt_variables(given) == {}
    read = read_settings(overlay(name), monkeypatch).model_dump()
    assert str(read["drain_delay"]).removesuffix(".0") == given["POLYHEAD_DRAIN_DELAY"]


@each_overlay
def test_an_end_has_time_for_all_its_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_settings(overlay(name), monkeypatch)
    pre_stop = container(overlay(name))["lifecycle"]["preStop"]["sleep"]["seconds"]
    # service/server.py: the delay, then the requests, a second for the last answers, then the workers
    needed = pre_stop + read.drain_delay + read.shutdown_timeout + 1 + read.shutdown_timeout
    assert pod(overlay(name))["spec"]["terminationGracePeriodSeconds"] > needed
    assert read.shutdown_timeout >= read.request_timeout


@each_overlay
def test_serves_on_until_nobody_sends_it_traffic(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = container(overlay(name))["readinessProbe"]
    pre_stop = container(overlay(name))["lifecycle"]["preStop"]["sleep"]["seconds"]
    noticed = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert pre_stop + read_settings(overlay(name), monkeypatch).drain_delay > noticed


@each_overlay
def test_probes_have_their_own_meanings(name: str) -> None:
    found = container(overlay(name))
    paths = {kind: found[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}
    assert found["startupProbe"]["failureThreshold"] * found["startupProbe"]["periodSeconds"] >= 60


@each_overlay
def test_callers_keep_no_probe_out(name: str) -> None:
    """The admin port has connections of its own, and callers are led to the other one."""
    found = container(overlay(name))
    assert {found[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "readiness", "liveness")} == {"admin"}
    ports = {port["name"]: port["containerPort"] for port in found["ports"]}
    assert settings(overlay(name))["POLYHEAD_ADMIN_PORT"] == str(ports["admin"])
    assert [port["targetPort"] for port in one(overlay(name), "Service")["spec"]["ports"]] == ["http"]


@each_overlay
def test_pods_are_restricted(name: str) -> None:
    assert_restricted(overlay(name))
    labels = one(overlay(name), "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("name", COMPONENTS)
def test_components_stay_restricted(name: str) -> None:
    assert_restricted(component(name))


def assert_restricted(text: str) -> None:
    """The "restricted" level of the Pod Security Standards, and a root file system that nobody writes."""
    spec = pod(text)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert all(volume.keys() & {"emptyDir", "configMap", "secret"} for volume in spec.get("volumes", ()))
    for found in containers(text):
        assert found["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@each_overlay
def test_selectors_mean_the_pods(name: str) -> None:
    labels = pod(overlay(name))["metadata"]["labels"]
    selectors: list[dict[str, str]] = [
        one(overlay(name), "Service")["spec"]["selector"],
        one(overlay(name), "Deployment")["spec"]["selector"]["matchLabels"],
        one(overlay(name), "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        policy(name, "polyhead")["podSelector"]["matchLabels"],
        *(
            constraint["labelSelector"]["matchLabels"]
            for constraint in pod(overlay(name))["spec"]["topologySpreadConstraints"]
        ),
    ]
    for selector in selectors:
        assert selector
        assert selector.items() <= labels.items()
    assert "app.kubernetes.io/version" not in selectors[1]  # a selector cannot change, a version does


@each_overlay
def test_one_late_answer_takes_no_replica_away(name: str) -> None:
    assert container(overlay(name))["readinessProbe"]["failureThreshold"] >= 3


@each_overlay
def test_replicas_are_spread_over_zones_and_nodes(name: str) -> None:
    constraints = pod(overlay(name))["spec"]["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in constraints] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    assert {one["whenUnsatisfiable"] for one in constraints} == {"ScheduleAnyway"}


@each_overlay
def test_ports_are_found_by_name(name: str) -> None:
    ports = {port["name"]: port["containerPort"] for port in container(overlay(name))["ports"]}
    assert ports == {"http": 8000, "admin": 8001}
    assert pod(overlay(name))["spec"]["enableServiceLinks"] is False  # else POLYHEAD_PORT is the Service's address


@each_overlay
def test_who_may_come_in_is_named(name: str) -> None:
    (rule,) = policy(name, "polyhead")["ingress"]
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]
    assert rule["from"] == [
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": {"polyhead-client": "true"}}},
    ]


def test_prometheus_alone_reaches_the_metrics() -> None:
    text = overlay("production")
    (rule,) = policy("production", "polyhead-metrics")["ingress"]
    (endpoint,) = one(text, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert rule["ports"] == [{"port": endpoint["port"], "protocol": "TCP"}]
    assert endpoint["port"] == "admin"
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def policy(name: str, policy_name: str) -> Resource:
    found = [item for item in resources(overlay(name)) if item["kind"] == "NetworkPolicy"]
    (spec,) = (item["spec"] for item in found if item["metadata"]["name"] == policy_name)
    return dict(spec)


@each_overlay
def test_nothing_goes_out(name: str) -> None:
    found = [item["spec"] for item in resources(overlay(name)) if item["kind"] == "NetworkPolicy"]
    assert [spec["egress"] for spec in found if "Egress" in spec["policyTypes"]] == [[]]


def test_production_wants_keys() -> None:
    text = overlay("production")
    assert settings(text)["POLYHEAD_API_KEYS_FILE"] == "/etc/polyhead/keys"
    (volume,) = (volume for volume in pod(text)["spec"]["volumes"] if volume["name"] == "keys")
    assert "optional" not in volume["secret"]  # without the Secret no pod starts
    assert not [
        item for item in resources(text) if item["kind"] == "Secret"
    ]  # made outside, with the sentence above it
    comment = (DEPLOY / "kubernetes/components/keys/kustomization.yaml").read_text()
    assert "kubectl -n polyhead create secret generic polyhead-keys --from-file=keys=keys.txt" in comment


@each_overlay
def test_the_event_loop_has_cores_beside_the_workers(name: str) -> None:
    given = container(overlay(name))["resources"]
    millicores = int(given["requests"]["cpu"].removesuffix("m"))
    assert millicores == 1000 * int(settings(overlay(name))["POLYHEAD_WORKERS"]) + 500
    assert "cpu" not in given["limits"]
    advice = " ".join((DEPLOY / "RUNBOOK.md").read_text().split())
    assert "the CPU request should be half a core more than `--workers`" in advice
    assert given["limits"]["memory"] == given["requests"]["memory"]


@each_overlay
def test_memory_is_enough(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = container(overlay(name))["resources"]["limits"]["memory"]
    sizes = {"Mi": 2**20, "Gi": 2**30}
    assert most_memory(read_settings(overlay(name), monkeypatch)) < int(limit[:-2]) * sizes[limit[-2:]]


@each_overlay
def test_images_are_of_one_version(name: str) -> None:
    for found in containers(overlay(name)):
        assert found["image"].rpartition(":")[2] in {"dev", VERSION}


def test_a_rollout_never_serves_less() -> None:
    strategy = one(overlay("production"), "Deployment")["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


@pytest.mark.parametrize(
    ("name", "kind"), [("autoscale", "ScaledObject"), ("autoscale-hpa", "HorizontalPodAutoscaler")]
)
def test_replicas_belong_to_the_scaler(name: str, kind: str) -> None:
    text = component(name)
    assert "replicas" not in one(text, "Deployment")["spec"]
    spec = one(text, kind)["spec"]
    behavior = spec["behavior"] if name == "autoscale-hpa" else scaler_behavior(spec)
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 300
    assert spec["scaleTargetRef"]["name"] == one(text, "Deployment")["metadata"]["name"]
    assert spec.get("minReplicas", spec.get("minReplicaCount")) >= 2


def scaler_behavior(spec: Resource) -> Any:
    return spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]


def test_scales_on_metrics_that_the_service_has() -> None:
    triggers = one(overlay("production"), "ScaledObject")["spec"]["triggers"]
    triggers += one(component("autoscale-gpu"), "ScaledObject")["spec"]["triggers"]
    names = {value for value in vars(metric_names).values() if isinstance(value, str)}
    for trigger in triggers:
        query = trigger["metadata"]["query"]
        (metric,) = re.findall(r"polyhead_\w+", query)
        assert metric in names
        assert metric.endswith("_total") == ("rate(" in query)  # a counter only grows: it would never scale in
        (namespace,) = re.findall(r'namespace="([^"]+)"', query)
        assert namespace == one(overlay("production"), "Deployment")["metadata"]["namespace"]


@pytest.mark.parametrize("name", ["autoscale", "autoscale-gpu"])
def test_nothing_known_of_the_load_is_no_reason_to_scale_in(name: str) -> None:
    spec = one(component(name), "ScaledObject")["spec"]
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"  # KEDA's default takes the others away
    for trigger in spec["triggers"]:
        assert trigger["metadata"]["ignoreNullValues"] == "false"  # its default reads an empty answer as 0


def test_gpu_replicas_ask_for_one() -> None:
    text = component("gpu")
    assert container(text)["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container(text)["image"].startswith("polyhead-gpu")
    assert settings(text)["POLYHEAD_PROVIDER"] == "cuda"
    assert settings(text)["POLYHEAD_WORKERS"] == "1"


def test_monitoring_holds_the_rule_files_and_the_dashboard() -> None:
    text = component("monitoring")
    files = [yaml.safe_load((DEPLOY / "prometheus" / name).read_text()) for name in ("rules.yaml", "alerts.yaml")]
    assert one(text, "PrometheusRule")["spec"]["groups"] == [group for file in files for group in file["groups"]]
    dashboard = one(text, "ConfigMap", "polyhead-dashboard")
    assert dashboard["data"] == {"polyhead.json": (DEPLOY / "grafana" / "polyhead.json").read_text()}
    monitor = one(text, "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= pod(text)["metadata"]["labels"].items()


def test_what_is_served_in_two_namespaces_is_two_jobs() -> None:
    """Else their models differ, and errors of one are lost among the answers of the other."""
    monitor = one(overlay("production"), "PodMonitor")
    assert "jobLabel" not in monitor["spec"]  # the operator's default is namespace and name
    job = f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"
    assert re.fullmatch(JOB.removeprefix('job=~"').removesuffix('"'), job)


def test_keys_come_from_a_secret_that_the_group_reads() -> None:
    text = component("keys")
    (mount,) = container(text)["volumeMounts"]
    (volume,) = pod(text)["spec"]["volumes"]
    assert volume["secret"] == {"secretName": "polyhead-keys", "defaultMode": 0o440}
    assert mount == {"name": volume["name"], "mountPath": "/etc/polyhead", "readOnly": True}
    assert settings(text)["POLYHEAD_API_KEYS_FILE"] == f"{mount['mountPath']}/keys"  # --from-file=keys=...
    assert pod(text)["spec"]["securityContext"]["fsGroup"] == pod(text)["spec"]["securityContext"]["runAsGroup"]


def test_volume_is_filled_before_it_is_served() -> None:
    text = component("volume")
    init, main = containers(text)
    mounts = {mount["name"]: mount for mount in main["volumeMounts"]}
    assert mounts["model"] == {"name": "model", "mountPath": "/model", "readOnly": True}
    assert {"name": "model", "mountPath": "/model"} in init["volumeMounts"]
    named = {volume["name"]: volume.get("configMap", {}).get("name") for volume in pod(text)["spec"]["volumes"]}
    script = one(text, "ConfigMap", named["fetch-model"])["data"]["fetch_model.py"]
    assert script == (DEPLOY / "kubernetes" / "components" / "volume" / "fetch_model.py").read_text()
    assert set(re.findall(r"\$\((\w+)\)", " ".join(init["command"]))) == {"MODEL_URL", "MODEL_SHA256", "MEMORY_LIMIT"}
    assert init["envFrom"] == [{"configMapRef": {"name": "polyhead-model"}}]
