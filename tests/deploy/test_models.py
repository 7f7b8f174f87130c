"""The overlay with several models: each has everything of its own, and the route leads to each."""

from typing import Any

import pytest

from tests.deploy.cluster import MODELS, Resource, overlay, resources

MODELS_BY_NAME = {"bge": "BAAI/bge-small-en-v1.5", "minilm": "sentence-transformers/all-MiniLM-L6-v2"}
NAMES = tuple(MODELS_BY_NAME)


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


def routes() -> list[tuple[Resource, Any, str]]:
    """What each rule of the HTTPRoute matches, its filters, and the Service that it leads to."""
    (route,) = of_kind("HTTPRoute")
    services = {item["metadata"]["name"] for item in of_kind("Service")}
    found = []
    for rule in route["spec"]["rules"]:
        (match,), (backend,) = rule["matches"], rule["backendRefs"]
        assert backend["name"] in services
        found.append((match, rule.get("filters"), backend["name"]))
    return found


def test_the_path_names_the_model_and_the_route_takes_its_name_away() -> None:
    taken_away = {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
    by_path = [(match, filters, service) for match, filters, service in routes() if "headers" not in match]
    led = {match["path"]["value"]: service for match, _, service in by_path}
    assert led == {f"/{name}": f"polyhead-{name}" for name in NAMES}
    for match, (filter_,), _ in by_path:
        assert match["path"]["type"] == "PathPrefix"
        assert filter_["urlRewrite"]["path"] == taken_away


def test_the_header_that_holds_openais_model_names_it_too() -> None:
    led = {}
    for match, filters, service in routes():
        if "headers" in match:
            (header,) = match["headers"]
            assert (header["name"], match["path"]["value"], filters) == ("X-Gateway-Model-Name", "/v1", None)
            led[header["value"]] = service
    assert led == {MODELS_BY_NAME[name]: f"polyhead-{name}" for name in NAMES}
