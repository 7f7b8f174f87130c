"""The overlay with several models: each has everything of its own, and the route leads to each."""

import pytest

from tests.deploy.cluster import MODELS, Resource, overlay, resources

NAMES = ("bge", "minilm")


def of_kind(kind: str) -> list[Resource]:
    return [item for item in resources(overlay(MODELS)) if item["kind"] == kind]


@pytest.mark.parametrize("kind", ["Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"])
def test_each_model_has_one_of_its_own(kind: str) -> None:
    assert [item["metadata"]["name"] for item in of_kind(kind)] == [f"polyhead-{name}" for name in NAMES]


def test_no_selector_means_the_pods_of_another_model() -> None:
    for kind in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"):
        for item in of_kind(kind):
            spec = item["spec"]
            selector = spec.get("selector") or spec["podSelector"]
            labels = selector.get("matchLabels", selector)
            assert f"polyhead-{labels['app.kubernetes.io/instance']}" == item["metadata"]["name"]
            assert labels["app.kubernetes.io/instance"] in NAMES


def test_models_are_in_images_of_their_own() -> None:
    pods = [item["spec"]["template"]["spec"] for item in of_kind("Deployment")]
    assert len({pod["containers"][0]["image"] for pod in pods}) == len(NAMES)
    assert {volume["secret"]["secretName"] for pod in pods for volume in pod["volumes"]} == {"polyhead-keys"}


def test_the_route_takes_the_models_name_away() -> None:
    (route,) = of_kind("HTTPRoute")
    services = {item["metadata"]["name"] for item in of_kind("Service")}
    led = {}
    for rule in route["spec"]["rules"]:
        (match,), (filter_,), (backend,) = rule["matches"], rule["filters"], rule["backendRefs"]
        assert match["path"]["type"] == "PathPrefix"
        assert filter_["urlRewrite"]["path"] == {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
        led[match["path"]["value"]] = backend["name"]
    assert led == {f"/{name}": f"polyhead-{name}" for name in NAMES}
    assert set(led.values()) == services
