"""More clients than there are places."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.http.connection import ADMIN_PLACES, PROBE_PLACES, Places
from tests.service.http.test_protocol import error_code, metric, read_answer, request_bytes
from tests.service.process import ServerProcess, wait_until
from tests.service.test_server import fake_server

TURNED_AWAY = (503, "1", "close", "too_many_connections")


@pytest.fixture(scope="module")
def full_server(fake_artifact: Path) -> Iterator[ServerProcess]:
    """Three places, all taken."""
    flags = ("--max-connections", "3", "--send-timeout", "0.4")
    with fake_server(fake_artifact, *flags).wait_until_ready() as server, ExitStack() as held:
        for _ in range(3):
            held.enter_context(server.connect())
        yield server


def refusal(connection: socket.socket) -> tuple[int, str, str, str]:
    status, headers, body = read_answer(connection)
    assert connection.recv(1) == b""
    return status, headers["retry-after"], headers["connection"], error_code(body)


@pytest.mark.parametrize("pieces", [1, 9])
@pytest.mark.parametrize(
    "sent",
    [
        request_bytes({"inputs": "cat"}),
        request_bytes({"inputs": "cat"}, path="/healthz/x"),
        request_bytes({"inputs": "cat"}, "Connection: Upgrade", "Upgrade: h2c"),
        b"GET /?/healthz HTTP/1.1\r\nHost: test\r\n\r\n",
    ],
    ids=["encode", "no probe", "upgrade", "front page"],
)
def test_clients_beyond_the_limit_are_told_so(full_server: ServerProcess, sent: bytes, pieces: int) -> None:
    with full_server.connect() as connection:
        size = -(-len(sent) // pieces)
        for start in range(0, len(sent), size):
            connection.sendall(sent[start : start + size])
        assert refusal(connection) == TURNED_AWAY


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz?x", "/metrics", "/health", "/v2/health/live", "/v2/health/ready"]
)
def test_probes_beyond_the_limit_are_answered(full_server: ServerProcess, path: str) -> None:
    """A popular process must not look dead to whoever restarts it."""
    for _ in range(PROBE_PLACES + 1):
        with full_server.connect() as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
            status, headers, _ = read_answer(connection)
            assert (status, headers["connection"]) == (200, "close")
            assert connection.recv(1) == b""


def test_a_probe_takes_nothing_along(full_server: ServerProcess) -> None:
    with full_server.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n" + request_bytes({"inputs": "cat"}))
        assert read_answer(connection)[0] == 200
        assert connection.recv(1) == b""


def test_places_for_probes_are_held_for_a_moment_only(full_server: ServerProcess) -> None:
    before = metric(full_server, 'polyhead_requests_rejected_total{reason="too_many_connections"}')
    with ExitStack() as held:
        silent = [held.enter_context(full_server.connect()) for _ in range(PROBE_PLACES)]
        silent[0].sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert refusal(held.enter_context(full_server.connect())) == TURNED_AWAY  # at once: there is no place at all
        assert {refusal(connection) for connection in silent} == {TURNED_AWAY}
        assert full_server.request("GET", "/healthz")[0] == 200  # while those linger
    rejected = metric(full_server, 'polyhead_requests_rejected_total{reason="too_many_connections"}')
    assert rejected == before + PROBE_PLACES + 1


def test_places_for_probes_are_free_again_once_these_are_answered(full_server: ServerProcess) -> None:
    with ExitStack() as held:
        for _ in range(PROBE_PLACES + 1):
            connection = held.enter_context(full_server.connect())
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\n")
            assert read_answer(connection)[0] == 200


def test_the_admin_port_has_places_of_its_own(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, "--max-connections", "1", "--admin-port", "0").wait_until_ready() as server:
        line = server.wait_for_line("metrics and documentation are on")
        admin = ("127.0.0.1", int(re.search(r"127\.0\.0\.1:(\d+)", line)[1]))  # type: ignore[index]
        with server.connect(), ExitStack() as scrapers:
            for _ in range(2):
                scraper = scrapers.enter_context(socket.create_connection(admin, timeout=10))
                scraper.sendall(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n")
                assert read_answer(scraper)[0] == 200
            with server.connect() as connection:
                connection.sendall(request_bytes({"inputs": "cat"}))
                assert read_answer(connection)[0] == 503
        with socket.create_connection(admin, timeout=10):  # which leaves the place of the one that is gone
            wait_until(lambda: server.request("GET", "/info")[0] == 200)


def test_places_at_each_port_end_and_are_freed() -> None:
    places = Places(2, admin_port=9)
    assert [places.enter(9) for _ in range(ADMIN_PLACES + 1)] == ["admin"] * ADMIN_PLACES + [None]
    first = [places.enter(port) for port in [8, None] * PROBE_PLACES]
    assert first == ["any"] * 2 + ["probe"] * PROBE_PLACES + [None] * (PROBE_PLACES - 2)
    places.leave("admin")
    places.leave("any")
    places.leave("probe")
    assert [places.enter(port) for port in (9, 9, 8, 8, 8)] == ["admin", None, "any", "probe", None]
