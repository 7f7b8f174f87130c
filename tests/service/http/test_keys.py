"""API keys: closed unless opened, rotated without a restart, never shown."""

import os
import timeit
from pathlib import Path

import pytest

from service.errors import Unauthorized
from service.http import keys
from service.http.keys import SHORTEST_KEY, KeyRing, KeysError
from service.routes.table import ROUTES
from tests.service.conftest import Serve, Served
from tests.service.process import fake_server

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


def test_the_open_routes_are_probes_pages_and_what_an_operator_reads() -> None:
    """Written out: a route that is opened by mistake has to be opened here, too."""
    assert {(route.method, route.path) for route in ROUTES if route.access != "key"} == {
        *(("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/health")),
        *(("GET", "/v2/health/live"), ("GET", "/v2/health/ready")),
        *(("GET", "/metrics"), ("GET", "/docs"), ("GET", "/openapi.json")),
        *(("GET", "/"), ("GET", "/static/{path:path}")),
    }


def test_a_route_that_does_not_exist_wants_a_key_too(guarded: Served) -> None:
    assert guarded.client.get("/nothing").status_code == 401
    assert guarded.client.get("/nothing", headers={"X-API-Key": FIRST}).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {FIRST}"},
        {"Authorization": f"bearer {SECOND}"},
        {"X-API-Key": SECOND},
        {"api-key": WRONG, "X-API-Key": FIRST},
        {"Authorization": f"Bearer {WRONG}", "X-API-Key": FIRST},  # a gateway's own token, OpenAI's client's "none"
        {"Authorization": f"Bearer {FIRST}", "X-API-Key": WRONG},
    ],
    ids=str,
)
def test_a_known_key_is_let_in(guarded: Served, headers: dict[str, str]) -> None:
    assert guarded.client.post("/encode", json={"inputs": "cat"}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": FIRST},
        {"Authorization": f"Basic {FIRST}"},
        {"Authorization": f"Bearer {FIRST}x"},
        {"Authorization": f"Bearer {FIRST[:-1]}"},
        {"Authorization": f"Bearer {FIRST} {SECOND}"},
        {"X-API-Key": WRONG},
        {"Authorization": f"Bearer {WRONG}", "X-API-Key": f"{FIRST}x"},
        {"X-API-Key": f"{FIRST},{SECOND}"},
    ],
    ids=str,
)
def test_anything_else_is_not(guarded: Served, headers: dict[str, str]) -> None:
    response = guarded.client.post("/encode", json={"inputs": "cat"}, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"
    assert guarded.backend.batches == []
    for key in (FIRST, SECOND, WRONG):
        assert key not in response.text


def test_without_keys_everybody_may_ask(served: Served) -> None:
    assert served.encode({"inputs": "cat"}).status_code == 200


def test_refusals_are_counted(guarded: Served) -> None:
    guarded.client.post("/encode", json={"inputs": "cat"})
    assert guarded.metric("polyhead_requests_rejected_total", reason="unauthorized") == 1


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
    file.write_text("\n")  # a file that lost its keys closes nobody out, and lets nobody in
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
    file.write_text(key)
    with pytest.raises(KeysError, match="API key"):
        KeyRing([], file)


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="No such file"):
        KeyRing([], tmp_path / "missing")
    (tmp_path / "large").write_text(f"{FIRST}\n" * 2**17)
    with pytest.raises(KeysError, match="larger than"):
        KeyRing([], tmp_path / "large")


def test_a_key_is_found_as_quickly_among_many() -> None:
    """Comparing each of 50,000 keys takes a thousand times as long as one look-up."""

    def seconds(ring: KeyRing) -> float:
        return min(timeit.repeat(lambda: check(ring, FIRST), number=5, repeat=20))

    many = KeyRing([FIRST, *(f"{number:032}" for number in range(50_000))])
    assert seconds(many) < 50 * seconds(KeyRing([FIRST]))


def test_the_process_takes_keys_from_the_environment_and_shows_none(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, POLYHEAD_API_KEYS=f"{FIRST}, {SECOND}").wait_until_ready() as server:
        assert server.request("POST", "/encode", {"inputs": "cat"})[0] == 401
        assert server.request("POST", "/encode", {"inputs": "cat"}, Authorization=f"Bearer {SECOND}")[0] == 200
        assert server.request("POST", "/encode", {"inputs": "cat"}, Authorization=f"Bearer {WRONG}")[0] == 401
        pages = b"".join(server.request("GET", path)[2] for path in ("/metrics", "/openapi.json", "/healthz"))
        assert server.stop() == 0
    for key in (FIRST, SECOND, WRONG):
        assert key not in server.log
        assert key.encode() not in pages


def test_the_process_does_not_start_with_unusable_keys(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, POLYHEAD_API_KEYS="hunter2") as server:
        assert server.wait() == 1
        assert "API key" in server.log
        assert "hunter2" not in server.log
