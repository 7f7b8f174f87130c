"""Clients that hold what others need, and requests that end while their answer waits for an earlier one to be read."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from service.errors import MalformedRequest
from service.http.connection import (
    ADMIN_CONNECTIONS,
    CONNECTION_KEY,
    REFUSED_CONNECTIONS,
    AnswerWriter,
    Connection,
    ConnectionSlots,
)
from tests.service.conftest import Serve, Served
from tests.service.http.test_protocol import PROBE, error_code, read_answer, read_failure, request_bytes, send_in
from tests.service.process import ServerProcess, fake_server, wait_until

DESCRIPTORS = 32 + 3 + ADMIN_CONNECTIONS + REFUSED_CONNECTIONS
REFUSED = (503, "1", "close", "too_many_connections")


def get(address: tuple[str, int], path: str) -> int:
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(PROBE.replace(b"/healthz", path.encode()))
        return read_answer(connection)[0]


@pytest.fixture(scope="module")
def full(fake_artifact: Path) -> Iterator[tuple[ServerProcess, ExitStack]]:
    """Three slots, all taken until the stack is closed: by requests whose last byte does not come. Few descriptors."""
    flags = ("--max-connections", "3", "--receive-timeout", "600", "--admin-port", "0")
    server = fake_server(fake_artifact, *flags, FAKE_DESCRIPTORS=str(DESCRIPTORS))
    with server.wait_until_ready(), ExitStack() as held:
        for _ in range(3):
            held.enter_context(server.connect(request_bytes({"inputs": "cat"})[:-1]))
        yield server, held


@pytest.mark.parametrize("pieces", [1, 9])
@pytest.mark.parametrize(
    "sent",
    [request_bytes({"inputs": "cat"}), request_bytes({"inputs": "cat"}, "Connection: Upgrade", "Upgrade: h2c"), PROBE],
    ids=["encode", "upgrade", "probe"],
)
def test_clients_beyond_the_limit_are_told_so(full: tuple[ServerProcess, ExitStack], sent: bytes, pieces: int) -> None:
    with full[0].connect() as connection:
        send_in(connection, sent, pieces)
        status, headers, body = read_answer(connection)
        assert (status, headers["retry-after"], headers["connection"], error_code(body)) == REFUSED
        assert connection.recv(1) == b""


def test_refused_clients_that_hold_on_keep_no_probe_out(full: tuple[ServerProcess, ExitStack]) -> None:
    """Each of them costs a descriptor, of which there are few."""
    server, _ = full
    with ExitStack() as refused:
        for _ in range(DESCRIPTORS):
            client = refused.enter_context(server.connect())
            assert get(server.admin_address, "/healthz") == 200
        assert read_answer(client)[0] == 503


def test_the_admin_port_has_slots_and_routes_of_its_own(full: tuple[ServerProcess, ExitStack]) -> None:
    server, held = full
    with socket.create_connection(server.admin_address, timeout=60) as scraper:
        for path in ("/metrics", "/docs", "/healthz", "/readyz"):
            assert get(server.admin_address, path) == 200, path
        for path in ("/info", "/"):
            assert get(server.admin_address, path) == 404, path
        held.close()  # the slot of one that is gone is free, and a scraper's is another
        wait_until(lambda: server.request("GET", "/info")[0] == 200)
        for path, status in (("/metrics", 404), ("/docs", 404), ("/", 200), ("/readyz", 200)):
            assert server.request("GET", path)[0] == status, path
        scraper.sendall(PROBE)
        assert read_answer(scraper)[0] == 200


def test_clients_that_ask_for_nothing_make_room(fake_artifact: Path) -> None:
    """One that never sends, one that has its answer, and one that does not end its headers; requests go on."""
    flags = ("--max-connections", "4", "--receive-timeout", "600", "--keep-alive-timeout", "600")
    with fake_server(fake_artifact, *flags).wait_until_ready() as server, ExitStack() as held:
        _, answered, unfinished, sending = [held.enter_context(server.connect()) for _ in range(4)]
        answered.sendall(PROBE)
        assert read_answer(answered)[0] == 200
        unfinished.sendall(PROBE[:-2])
        body = request_bytes({"inputs": "cat"})
        sending.sendall(body[:-1])
        wait_until(lambda: server.request("GET", "/healthz")[0] == 200)
        server.wait_for_line("those that have waited longest for a request are closed")
        sending.sendall(body[-1:])
        assert read_answer(sending)[0] == 200


def test_slots_at_each_port_end_and_are_freed() -> None:
    slots, client = ConnectionSlots(2, admin_port=9), Mock()
    assert [slots.take(9, client) for _ in range(ADMIN_CONNECTIONS + 1)] == ["admin port"] * ADMIN_CONNECTIONS + [None]
    assert [slots.take(port, client) for port in (8, None, 8)] == ["first port"] * 2 + [None]
    slots.release("admin port", client)
    slots.release("first port", client)
    assert [slots.take(port, client) for port in (9, 9, 8, 8)] == ["admin port", None, "first port", None]


def test_of_many_refused_clients_the_first_is_cut_off() -> None:
    slots, refused = ConnectionSlots(0), [Mock() for _ in range(REFUSED_CONNECTIONS + 2)]
    gone, first = refused[:2]
    for connection in refused[:-1]:
        assert slots.take(8, connection) is None
    gone.abort.assert_called_once()
    slots.release(None, gone)
    slots.release(None, refused[5])
    slots.take(8, refused[-1])
    first.abort.assert_not_called()


def is_encoded(server: ServerProcess) -> bool:
    """Whether a small request is answered; the only other answer is that too many bytes are held."""
    status, _, body = server.request("POST", "/encode", {"inputs": "cat"})
    assert status == 200 or (status, error_code(body)) == (429, "too_many_bytes_held")
    return status == 200


def test_a_body_that_does_not_end_makes_room(fake_artifact: Path) -> None:
    flags = ("--max-body-bytes", "3000", "--max-held-body-bytes", "4000", "--receive-timeout", "600")
    unfinished = request_bytes({"inputs": "cat " * 700})
    with (
        fake_server(fake_artifact, *flags).wait_until_ready() as server,
        server.connect() as small,
        server.connect() as large,
    ):
        for client, missing in ((large, 10), (small, 1625)):
            client.sendall(unfinished[:-missing])
            wait_until(lambda: server.request("GET", "/healthz")[0] == 200)
        assert not is_encoded(server)
        wait_until(lambda: is_encoded(server))
        assert read_failure(large) == (408, "close", "request_timeout")
        small.sendall(unfinished[-1625:])
        assert read_answer(small)[0] == 200


HEAD, ARRAY = b"HTTP/1.1 200 OK\r\n\r\n", memoryview(b"numbers")


@pytest.mark.parametrize(
    ("holds_head", "written", "at_last", "sent"),
    [
        (True, [HEAD], None, []),  # waits for its body
        (True, [HEAD, b"first", b"second"], "flush", [(HEAD, b"first"), b"second"]),
        (True, [HEAD], "flush", [HEAD]),  # without a body
        (True, [HEAD], "close", [HEAD, "closed"]),
        (True, [HEAD, b"header", ARRAY, ARRAY], None, [(HEAD, b"header"), ARRAY, ARRAY]),
        (False, [b"HTTP/1.1 100 Continue\r\n\r\n"], None, [b"HTTP/1.1 100 Continue\r\n\r\n"]),
    ],
)
def test_a_head_leaves_with_its_body_and_all_else_at_once(
    holds_head: bool, written: list[Any], at_last: str | None, sent: list[Any]
) -> None:
    calls: list[Any] = []
    transport = Mock(write=calls.append, writelines=calls.append)
    writer = AnswerWriter(transport, lambda: calls.append("closed"))
    if holds_head:
        writer.hold_head()
    for data in written:
        writer.write(data)
    if at_last is not None:
        getattr(writer, at_last)()
        writer.flush()
    assert calls == sent
    assert all(call is ARRAY for call in calls if isinstance(call, memoryview))


HOSTS = [("good.example", 415), ("evil.example", 400)]  # refused by the route, and before it


def lose(connection: Connection) -> None:
    connection.is_lost = True
    connection.cancel()


def break_off(connection: Connection) -> None:
    connection.fail(MalformedRequest("this is no valid HTTP/1.1 request"))


def answers_of_blocked(served: Served, host: str, end: Callable[[Connection], None]) -> list[Any]:
    """The statuses that are sent of a request that `end` happens to while its answer's head waits."""
    app: Any = served.client.app
    connection, sent = Connection(), []
    headers = [(b"host", host.encode()), (b"content-type", b"text/csv")]
    scope = {"type": "http", "method": "POST", "path": "/encode", "headers": headers, CONNECTION_KEY: connection}

    async def run() -> None:
        waits = asyncio.Event()

        async def send(message: Any) -> None:
            if not waits.is_set():
                waits.set()
                await asyncio.Event().wait()
            sent.append(message.get("status"))

        task = asyncio.create_task(app(scope, None, send))
        await waits.wait()
        end(connection)
        await task

    asyncio.run(run())
    return sent


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_who_leaves_before_the_answer_is_counted_and_raises_nothing(serve: Serve, host: str, status: int) -> None:
    served = serve("--allowed-hosts", "good.example")
    assert served.client.post("/encode", headers={"host": host}).status_code == status
    assert answers_of_blocked(served, host, lose) == []
    assert served.metric("polyhead_client_disconnects_total") == 1


@pytest.mark.parametrize("host", [host for host, _ in HOSTS])
def test_a_body_that_breaks_off_before_the_answer_is_told(serve: Serve, host: str) -> None:
    served = serve("--allowed-hosts", "good.example")
    assert answers_of_blocked(served, host, break_off) == [400, None]
    assert served.metric("polyhead_requests_rejected_total", reason="malformed_request") == 1
    assert served.metric("polyhead_requests_in_flight") == 0


def test_the_connection_is_told_before_an_answer_begins(served: Served) -> None:
    """It then writes head and body together."""
    app: Any = served.client.app
    events: list[str] = []
    connection = Connection(lambda: bool(events.append("told")))  # type: ignore[func-returns-value]
    scope = {"type": "http", "method": "GET", "path": "/healthz", "headers": [], CONNECTION_KEY: connection}

    async def send(message: Any) -> None:
        events.append(message["type"])

    asyncio.run(app(scope, None, send))
    assert events == ["told", "http.response.start", "http.response.body"]
