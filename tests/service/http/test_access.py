"""API keys: closed unless opened, rotated without a restart, never shown."""

import logging
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from service.app import ROUTES
from service.errors import MalformedRequest, Unauthorized
from service.http import access as keys
from service.http.access import SHORTEST_KEY, HostAndPortPolicy, KeyRing, KeysError
from service.listeners import StartFailure
from service.observability.logs import REQUEST_LOGGER
from service.server import serve as start
from service.settings import read_settings
from tests.service.conftest import Serve, Served

FIRST, SECOND, WRONG = "first-key-0123456789", "second-key-9876543210", "wrong-key-0123456789"


def check(ring: KeyRing, key: str | None) -> None:
    ring.check({} if key is None else {b"authorization": b"Bearer " + key.encode()})


@pytest.fixture
def guarded(serve: Serve, tmp_path: Path) -> Served:
    file = tmp_path / "keys"
    file.write_text(f"# the search team\n{FIRST}\n\n  {SECOND}  \n")
    served: Served = serve("--api-keys-file", str(file))
    return served


def test_every_route_but_the_open_ones_wants_a_key(guarded: Served) -> None:
    for route in ROUTES:
        path = route.path.replace("{path:path}", "viewer/index.html")
        for method in route.methods:
            response = guarded.client.request(method, path, json={} if method == "POST" else None)
            assert (response.status_code == 401) == (route.access == "key"), (method, path, response.status_code)
            assert ("www-authenticate" in response.headers) == (route.access == "key")
            assert not any(key in response.text for key in (FIRST, SECOND)), path
    assert guarded.encode({"inputs": "cat"}, Authorization=f"Bearer {WRONG}").status_code == 401
    assert guarded.backend.batches == []
    assert guarded.client.get("/nothing").status_code == 401
    assert guarded.client.get("/nothing", headers={"X-API-Key": FIRST}).status_code == 404


def test_the_open_routes_are_probes_pages_and_what_an_operator_reads() -> None:
    """Written out: a route that is opened by mistake has to be opened here, too."""
    assert {(route.method, route.path) for route in ROUTES if route.access != "key"} == {
        *(("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/health")),
        *(("GET", "/v2/health/live"), ("GET", "/v2/health/ready")),
        *(("GET", "/metrics"), ("GET", "/docs"), ("GET", "/openapi.json")),
        *(("GET", "/"), ("GET", "/static/{path:path}")),
        *(("GET", "/admin/models"), ("POST", "/admin/models")),  # with a key, and on the admin port only
        ("DELETE", "/admin/models/{model:path}"),
    }


@pytest.mark.parametrize(
    ("headers", "is_known"),
    [
        ({"Authorization": f"Bearer {FIRST}"}, True),
        ({"Authorization": f"bearer {SECOND}"}, True),
        ({"X-API-Key": SECOND}, True),
        ({"api-key": WRONG, "X-API-Key": FIRST}, True),
        ({"Authorization": f"Bearer {WRONG}", "X-API-Key": FIRST}, True),  # a gateway's token, OpenAI's client's "none"
        ({"Authorization": f"Bearer {FIRST}", "X-API-Key": WRONG}, True),
        ({}, False),
        ({"Authorization": ""}, False),
        ({"Authorization": "Bearer"}, False),
        ({"Authorization": "Bearer "}, False),
        ({"Authorization": FIRST}, False),
        ({"Authorization": f"Basic {FIRST}"}, False),
        ({"Authorization": f"Bearer {FIRST}x"}, False),
        ({"Authorization": f"Bearer {FIRST[:-1]}"}, False),
        ({"Authorization": f"Bearer {FIRST} {SECOND}"}, False),
        ({"X-API-Key": WRONG}, False),
        ({"Authorization": f"Bearer {WRONG}", "X-API-Key": f"{FIRST}x"}, False),
        ({"X-API-Key": f"{FIRST},{SECOND}"}, False),
    ],
    ids=str,
)
def test_a_known_key_is_let_in_and_nothing_else(headers: dict[str, str], is_known: bool) -> None:
    ring = KeyRing([FIRST, SECOND])
    with nullcontext() if is_known else pytest.raises(Unauthorized) as refused:
        ring.check({name.lower().encode(): value.encode() for name, value in headers.items()})
    assert is_known or not any(key in str(refused) for key in (FIRST, SECOND, WRONG))


def test_keys_change_while_the_process_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keys, "RELOAD_INTERVAL", 0.0)
    file = tmp_path / "keys"
    file.write_text(FIRST)
    ring = KeyRing([], file)
    check(ring, FIRST)
    replacement = tmp_path / "new"
    replacement.write_text(f"{FIRST}\n{SECOND}\n")
    os.replace(replacement, file)
    check(ring, FIRST)
    check(ring, SECOND)
    file.write_text(SECOND)
    with pytest.raises(Unauthorized):
        check(ring, FIRST)
    file.write_bytes(b"\xef\xbb\xbf%b\n%b" % (FIRST.encode(), SECOND.encode()))  # as editors of Windows write it
    check(ring, FIRST)
    file.write_text("\n")  # a file that lost its keys closes no one out, and lets no one in
    check(ring, SECOND)
    file.unlink()
    check(ring, SECOND)
    with pytest.raises(Unauthorized):
        check(ring, WRONG)
    assert "stay as they were" in caplog.text
    assert SECOND not in caplog.text


@pytest.mark.parametrize(
    "key", ["", "short", "x" * (SHORTEST_KEY - 1), "has a space in the key", "sch\u00f6ner-schl\u00fcssel"]
)
def test_keys_that_can_be_guessed_or_not_be_sent_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(KeysError, match="API key") as refused:
        KeyRing([key])
    assert not key or key not in str(refused.value)
    file = tmp_path / "keys"
    with pytest.raises(KeysError, match="cannot read the API keys in .*: No such file"):
        KeyRing([], file)
    file.write_text(key)
    with pytest.raises(KeysError, match="API key"):
        KeyRing([], file)


def test_the_process_does_not_start_with_unusable_keys(fake_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYHEAD_API_KEYS", "hunter2")
    with pytest.raises(StartFailure, match="API key") as refused:
        start(read_settings(["--model", str(fake_artifact), "--port", "0"]))
    assert "hunter2" not in str(refused.value)


ADDRESS = "10.0.0.7:8000"
# An orchestrator asks a pod, an image's health check its own container: neither knows the service's name.
PROBES = ("/healthz", "/readyz", "/metrics", "/health", "/v2/health/live", "/v2/health/ready")
SERVED = (
    *("api.example.com", "API.Example.com:8000", "a.b.internal", "api.example.com.:80", "a.internal."),
    *("a.internal:80", "[::1]:80"),
)
OTHERS = (
    *(None, "", "example.com", "evil.api.example.com", "internal", "api.example.com.evil.net", ".internal"),
    *("evil.net#.internal", "evil.net/.internal", "a..internal", "api.example.com:\u00b2"),
)


@pytest.mark.parametrize(
    ("path", "host", "is_served"),
    [
        *(("/encode", host, True) for host in SERVED),
        *(("/encode", host, False) for host in OTHERS),
        *((path, ADDRESS, False) for path in ("/encode", "/info")),
        *((path, ADDRESS, True) for path in PROBES),
    ],
)
def test_hosts_that_are_served(path: str, host: str | None, is_served: bool) -> None:
    policy = HostAndPortPolicy(None, ["api.example.com", "*.internal", "[::1]"])
    route = next(route for route in ROUTES if route.path == path)
    with nullcontext() if is_served else pytest.raises(MalformedRequest, match="Host"):
        policy.check(route, None, None if host is None else host.encode("latin-1"))


ORIGIN = "https://notes.example.com"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type",
}


def test_pages_of_given_origins_may_call(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    key, header = "the-only-key-0123456789", "access-control-allow-origin"
    served = serve("--cors-origins", f"https://other.example.com, {ORIGIN}", "--api-keys", key)
    with caplog.at_level(logging.INFO, REQUEST_LOGGER):
        allowed = served.client.options("/encode", headers={**PREFLIGHT, "X-Request-Id": "asked-1"})
    assert (allowed.status_code, allowed.headers[header]) == (200, ORIGIN), "browsers ask without a key"
    assert (allowed.headers["x-request-id"], allowed.headers["x-content-type-options"]) == ("asked-1", "nosniff")
    (line,) = (vars(record)["fields"] for record in caplog.records if record.name == REQUEST_LOGGER)
    assert (line["route"], line["method"], line["status"]) == ("/encode", "OPTIONS", 200)
    labels = {"route": "/encode", "method": "OPTIONS", "status": "200"}
    assert served.metric("polyhead_request_duration_seconds_count", **labels) == 1
    assert served.client.options("/encode").status_code == 401  # no browser that asks for a page
    for body, sent, status in (({"inputs": "cat"}, key, 200), ({}, key, 422), ({}, "", 401)):
        response = served.encode(body, origin=ORIGIN, x_api_key=sent)
        assert response.status_code == status
        assert response.headers[header] == ORIGIN, "failures too, or the page could not read what went wrong"
    evil = "https://evil.example"
    assert header not in served.encode({"inputs": "cat"}, origin=evil, x_api_key=key).headers
    refused = served.client.options("/encode", headers={**PREFLIGHT, "Origin": evil})
    assert (refused.status_code, refused.text) == (400, "Disallowed CORS origin")


def test_pages_of_other_origins_are_kept_out_by_default(served: Served) -> None:
    assert served.client.options("/encode", headers=PREFLIGHT).status_code == 405
    assert "access-control-allow-origin" not in served.encode({"inputs": "cat"}, origin=ORIGIN).headers


def test_a_preflight_for_another_host_or_port_is_refused(serve: Serve) -> None:
    served = serve("--cors-origins", ORIGIN, "--allowed-hosts", "testserver", "--admin-port", "9001")
    assert served.client.options("/encode", headers=PREFLIGHT).status_code == 200
    assert served.client.options("/encode", headers={**PREFLIGHT, "Host": "rebound.example.net"}).status_code == 400
    assert served.client.options("http://testserver:9001/encode", headers=PREFLIGHT).status_code == 404
    assert served.client.options("/metrics", headers=PREFLIGHT).status_code == 404
