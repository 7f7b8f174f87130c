"""The admin port and host names."""

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from service.errors import MalformedRequest
from service.http.host_and_port import HostAndPortPolicy
from service.http.route import Route
from service.routes.table import ROUTES
from tests.service.conftest import Serve
from tests.service.process import fake_server


def route_of(path: str) -> Route:
    return next(route for route in ROUTES if route.path == path)


def get(port: str, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_metrics_and_documentation_are_on_the_admin_port_alone(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, "--admin-port", "0").wait_until_ready() as server:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", server.wait_for_line("metrics and documentation are on"))
        assert found
        admin, port = found[1], str(server.address[1])
        for path in ("/metrics", "/docs", "/openapi.json"):
            assert (get(admin, path), get(port, path)) == (200, 404)
        for path in ("/info", "/"):
            assert (get(admin, path), get(port, path)) == (404, 200)
        for path in ("/healthz", "/readyz"):
            assert (get(admin, path), get(port, path)) == (200, 200)
        assert server.request("POST", "/encode", {"inputs": "cat"})[0] == 200
        assert server.stop() == 0


def test_the_two_ports_must_differ(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, "--port", "18999", "--admin-port", "18999") as server:
        assert server.wait() == 2
        assert "expected another one" in server.log


@pytest.mark.parametrize(
    "host", ["api.example.com", "API.Example.com:8000", "a.b.internal", "a.internal:80", "[::1]:80"]
)
def test_hosts_that_are_served(host: str) -> None:
    HostAndPortPolicy(None, ["api.example.com", "*.internal", "[::1]"]).check(route_of("/encode"), None, host.encode())


@pytest.mark.parametrize(
    "host", [None, "", "example.com", "evil.api.example.com", "internal", "api.example.com.evil.net"]
)
def test_hosts_that_are_not(host: str | None) -> None:
    policy = HostAndPortPolicy(None, ["api.example.com", "*.internal"])
    with pytest.raises(MalformedRequest, match="Host"):
        policy.check(route_of("/encode"), None, None if host is None else host.encode())


def test_probes_and_scrapes_name_an_address() -> None:
    """An orchestrator asks a pod, an image's health check its own container: neither knows the service's name."""
    policy = HostAndPortPolicy(None, ["api.example.com"])
    for route in ("/healthz", "/readyz", "/metrics", "/health", "/v2/health/live", "/v2/health/ready"):
        policy.check(route_of(route), None, b"10.0.0.7:8000")
    with pytest.raises(MalformedRequest, match="Host"):
        policy.check(route_of("/info"), None, b"10.0.0.7:8000")


def test_another_host_name_is_answered_400(serve: Serve) -> None:
    served = serve("--allowed-hosts", "testserver")
    assert served.encode({"inputs": "cat"}).status_code == 200
    response = served.encode({"inputs": "cat"}, host="rebound.example.net")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "Host"
