"""Pages of other origins: what their browsers are told, and that asking them passes every check of a request."""

import logging

import pytest

from service.observability.logs import REQUEST_LOGGER
from tests.service.conftest import Serve, Served

ORIGIN = "https://notes.example.com"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type",
}


@pytest.fixture
def opened(serve: Serve) -> Served:
    made: Served = serve("--cors-origins", f"https://other.example.com, {ORIGIN}")
    return made


def test_pages_of_other_origins_are_kept_out_by_default(served: Served) -> None:
    assert served.client.options("/encode", headers=PREFLIGHT).status_code == 405
    assert "access-control-allow-origin" not in served.encode({"inputs": "cat"}, origin=ORIGIN).headers


def test_pages_of_given_origins_may_call(opened: Served) -> None:
    allowed = opened.client.options("/encode", headers=PREFLIGHT)
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, ORIGIN)
    good, bad = opened.encode({"inputs": "cat"}, origin=ORIGIN), opened.encode({}, origin=ORIGIN)
    assert (good.status_code, bad.status_code) == (200, 422)
    for response in (good, bad):  # failures too, or the page could not read what went wrong
        assert response.headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-origin" not in opened.encode({"inputs": "cat"}, origin="https://evil.example").headers


def test_pages_read_why_they_have_no_key(serve: Serve) -> None:
    served = serve("--cors-origins", ORIGIN, "--api-keys", "the-only-key-0123456789")
    refused = served.encode({"inputs": "cat"}, origin=ORIGIN)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, ORIGIN)


def test_browsers_ask_without_a_key(serve: Serve) -> None:
    served = serve("--cors-origins", ORIGIN, "--api-keys", "the-only-key-0123456789")
    assert served.client.options("/encode", headers=PREFLIGHT).status_code == 200
    assert served.client.options("/encode").status_code == 401  # no browser that asks for a page


def test_an_unknown_origin_is_told_so(opened: Served) -> None:
    refused = opened.client.options("/encode", headers={**PREFLIGHT, "Origin": "https://evil.example"})
    assert (refused.status_code, refused.text) == (400, "Disallowed CORS origin")


def test_a_preflight_is_answered_as_every_request_is(opened: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, REQUEST_LOGGER):
        answered = opened.client.options("/encode", headers={**PREFLIGHT, "X-Request-Id": "asked-1"})
    assert answered.headers["x-request-id"] == "asked-1"
    assert answered.headers["x-content-type-options"] == "nosniff"
    (line,) = (vars(record)["fields"] for record in caplog.records if record.name == REQUEST_LOGGER)
    assert (line["route"], line["method"], line["status"]) == ("/encode", "OPTIONS", 200)
    name = "polyhead_request_duration_seconds_count"
    assert opened.metric(name, route="/encode", method="OPTIONS", status="200") == 1


def test_a_preflight_for_another_host_or_port_is_refused(serve: Serve) -> None:
    served = serve("--cors-origins", ORIGIN, "--allowed-hosts", "testserver", "--admin-port", "9001")
    assert served.client.options("/encode", headers=PREFLIGHT).status_code == 200
    assert served.client.options("/encode", headers={**PREFLIGHT, "Host": "rebound.example.net"}).status_code == 400
    assert served.client.options("http://testserver:9001/encode", headers=PREFLIGHT).status_code == 404
    assert served.client.options("/metrics", headers=PREFLIGHT).status_code == 404
