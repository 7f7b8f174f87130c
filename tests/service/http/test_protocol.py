"""Connections as clients misuse them: raw sockets against the real process."""

import asyncio
import gc
import json
import socket
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.server import ServerState

from service.http.connection import CONNECTION_KEY, ConnectionSlots
from service.http.protocol import MOST_PIPELINED, BoundedProtocol
from service.http.response import PART_BYTES
from service.settings import Settings
from tests.service.process import ServerProcess, fake_server, read_sample, wait_until

HEAD = b"POST /encode HTTP/1.1\r\nHost: test\r\n"  # and more headers
CHUNKED = HEAD + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
PROBE = b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n"


def request_bytes(body: Any, *headers: str, path: str = "/encode") -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


def large_request(texts: int) -> bytes:
    """One whose answer has 17 kB a text."""
    return request_bytes({"inputs": ["cat " * 14] * texts, "output": "tokens", "attention": {"layers": "all"}})


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One answer and not a byte more: status, headers, body."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        part = connection.recv(1)
        assert part, f"closed after {received!r}"
        received += part
    head, body = received[:-4], b""
    first, *rest = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    while missing := int(headers["content-length"]) - len(body):
        part = connection.recv(missing)
        assert part, "closed inside the body"
        body += part
    return int(first.split(" ")[1]), headers, body


def error_code(body: bytes) -> str:
    code: str = json.loads(body)["error"]["code"]
    return code


def read_failure(connection: socket.socket) -> tuple[int, str | None, str]:
    """Of one answer that is a failure: status, what becomes of the connection, code."""
    status, headers, body = read_answer(connection)
    return status, headers.get("connection"), error_code(body)


def send_in(connection: socket.socket, data: bytes, pieces: int) -> None:
    """Sends data in so many packets."""
    size = -(-len(data) // pieces)
    for start in range(0, len(data), size):
        connection.sendall(data[start : start + size])
        time.sleep(0.02 if pieces > 1 else 0)


def metric(server: ServerProcess, name: str) -> float:
    return read_sample(server.request("GET", "/metrics")[2].decode(), name)


@pytest.fixture(scope="module")
def slow_server(fake_artifact: Path) -> Iterator[ServerProcess]:
    """One worker, 0.4 s a run."""
    with fake_server(fake_artifact, "--max-batch-tokens", "1", FAKE_RUN_SECONDS="0.4").wait_until_ready() as server:
        yield server


@pytest.fixture(scope="module")
def server(fake_artifact: Path) -> Iterator[ServerProcess]:
    with fake_server(fake_artifact).wait_until_ready() as started:
        yield started


def test_client_that_leaves_frees_its_place_in_the_queue(slow_server: ServerProcess) -> None:
    before = metric(slow_server, "polyhead_client_disconnects_total")
    with slow_server.connect(request_bytes({"inputs": ["cat " * 14] * 200})):  # more than a worker takes in hand
        wait_until(lambda: metric(slow_server, "polyhead_queue_texts") > 0)
    wait_until(lambda: metric(slow_server, "polyhead_queue_texts") == 0)  # computed, they would stand there for 80 s
    assert metric(slow_server, "polyhead_client_disconnects_total") == before + 1
    wait_until(lambda: metric(slow_server, "polyhead_requests_in_flight") == 1)
    slow_server.wait_for_line('"status":499')
    assert slow_server.request("POST", "/encode", {"inputs": "cat"})[0] == 200


def test_client_that_leaves_inside_its_body_is_counted_and_not_one_that_has_its_answer(server: ServerProcess) -> None:
    before = metric(server, "polyhead_client_disconnects_total")
    for path in ("/docs", "/info", "/healthz"):
        with server.connect(PROBE.replace(b"/healthz", path.encode())) as connection:
            assert read_answer(connection)[0] == 200
    assert metric(server, "polyhead_client_disconnects_total") == before
    with server.connect(request_bytes({"inputs": "cat"})[:-5]):
        wait_until(lambda: metric(server, "polyhead_requests_in_flight") == 2)
    wait_until(lambda: metric(server, "polyhead_client_disconnects_total") == before + 1)


def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    requests = b"".join(request_bytes({"inputs": ["cat"] * count}) for count in (1, 2, 3))
    with server.connect(requests) as connection:
        assert [json.loads(read_answer(connection)[2])["usage"]["tokens"] for _ in range(3)] == [3, 6, 9]


@pytest.mark.parametrize(
    ("sent", "status", "param"),
    [
        (b"nonsense\r\n\r\n", 400, None),
        (b"GET / HTTP/9.9\r\n\r\n", 400, None),
        (b"POST /encode HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, None),
        (b"POST /encode HTTP/1.1\r\nContent-Length: abc\r\n\r\n", 400, None),
        (b"POST /encode HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, None),
        (b"POST /encode HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, None),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400, None),
        (b"GET ? HTTP/1.1\r\nHost: test\r\n\r\n", 400, None),
        (b"GET /healthz HTTP/2.0\r\nHost: test\r\n\r\n", 400, None),
        (b"GET /healthz HTTP/0.9\r\nHost: test\r\n\r\n", 400, None),
        (b"CONNECT /encode HTTP/1.1\r\nHost: test\r\n\r\n", 400, None),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400, None),  # TLS
        # Python reads no number of more than 4,300 digits: that was a failure of ours
        *((HEAD + b"Content-Length: %s2\r\n\r\n" % (b"0" * size), 400, "Content-Length") for size in (4400, 20)),
        # before the body is sent, which may still come, or the next request
        (
            CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: 10000000\r\nExpect: 100-continue"),
            413,
            None,
        ),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "Transfer-Encoding"),
        (HEAD + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", 501, "Transfer-Encoding"),
    ],
    ids=repr,
)
def test_what_is_no_http_and_what_is_not_read_are_refused_in_the_one_body(
    server: ServerProcess, sent: bytes, status: int, param: str | None
) -> None:
    with server.connect(sent) as connection:
        found, headers, body = read_answer(connection)
        assert (found, headers["connection"], headers["content-type"]) == (status, "close", "application/json")
        assert headers["x-content-type-options"] == "nosniff"
        assert "date" in headers, "RFC 9110, 6.6.1"
        code = {400: "malformed_request", 413: "too_large", 501: "unsupported_transfer_coding"}[status]
        assert (json.loads(body)["error"]["code"], json.loads(body)["error"]["param"]) == (code, param)
        assert connection.recv(1) == b""


@pytest.mark.parametrize(("version", "first"), [(b"1.1", b"HTTP/1.1 100 "), (b"1.0", b"HTTP/1.1 200 ")])
def test_http_1_0_has_no_interim_answers(server: ServerProcess, version: bytes, first: bytes) -> None:
    """RFC 9110, 10.1.1: its clients would take one for the answer."""
    request = request_bytes({"inputs": "cat"}, "Expect: 100-continue")
    with server.connect(request.replace(b"HTTP/1.1", b"HTTP/" + version)) as connection:
        assert connection.recv(len(first)) == first


@pytest.mark.parametrize(
    ("chunk", "status", "code"),
    [
        (b"1\r\n \r\n", 400, "malformed_request"),
        (b"1;" + b"x" * 30_000 + b"\r\n \r\n", 431, "headers_too_large"),
        (b"10000\r\n" + b" " * 0x10000 + b"\r\n", 413, "too_large"),  # the limit is 2 MiB
    ],
    ids=["one byte each", "extensions", "no end"],
)
def test_chunks_that_hold_little_or_have_no_end_are_refused(
    server: ServerProcess, chunk: bytes, status: int, code: str
) -> None:
    with server.connect(CHUNKED) as connection:
        with suppress(OSError):  # it may be closed meanwhile
            for _ in range(40):
                connection.sendall(chunk * (1_000_000 // len(chunk)))
        found, _, found_code = read_failure(connection)
        assert (found, found_code) == (status, code)


@pytest.mark.parametrize("offer", ["", "Connection: Upgrade\r\nUpgrade: h2c\r\n"], ids=["", "upgrade"])
@pytest.mark.parametrize(
    ("version", "hosts", "expected"),
    [("1.1", 0, 400), ("1.1", 1, 200), ("1.1", 2, 400), ("1.0", 0, 200), ("1.0", 1, 200), ("1.0", 2, 400)],
)
def test_a_request_has_one_host(server: ServerProcess, version: str, hosts: int, expected: int, offer: str) -> None:
    """RFC 9112, 3.2; probes of load balancers that speak HTTP/1.0 send none."""
    lines = [f"GET /healthz HTTP/{version}", *["hOst: test"] * hosts]
    with server.connect(("\r\n".join(lines) + f"\r\n{offer}\r\n").encode()) as connection:
        status, headers, body = read_answer(connection)
        assert status == expected
        if expected == 400:
            assert (headers["connection"], error_code(body)) == ("close", "malformed_request")
            assert json.loads(body)["error"]["message"] == f"Host: expected one such header, got {hosts}"


@pytest.mark.parametrize("waiting", [0, 2])
def test_what_follows_a_request_is_refused_after_its_answer(slow_server: ServerProcess, waiting: int) -> None:
    """A body longer than its Content-Length is one; bytes between the two are answered no more."""
    with slow_server.connect(request_bytes({"inputs": "cat"}) * (1 + waiting) + b"nonsense\r\n\r\n") as connection:
        assert [read_answer(connection)[0] for _ in range(2)] == [200, 400]
        assert connection.recv(1) == b""


def test_requests_ahead_of_answers_are_bounded(server: ServerProcess) -> None:
    with server.connect(PROBE * (1 + MOST_PIPELINED)) as connection:
        assert [read_answer(connection)[0] for _ in range(1 + MOST_PIPELINED)] == [200] * (1 + MOST_PIPELINED)
        connection.sendall(PROBE * 10_000)
        received = b""
        while part := connection.recv(1 << 20):
            received += part
        assert b'"code":"malformed_request"' in received
        assert received.count(b"HTTP/1.1 ") <= 2 + MOST_PIPELINED


def test_a_connection_that_is_kept_for_no_time_is_said_to_close(fake_artifact: Path) -> None:
    """RFC 9112, 9.6; a client that believes in the next request loses it."""
    started = fake_server(fake_artifact, "--keep-alive-timeout", "0").wait_until_ready()
    with started as server, server.connect(PROBE * 2) as connection:
        assert read_answer(connection)[1]["connection"] == "close"
        assert connection.recv(1) == b""


async def test_bodies_that_nobody_reads_are_kept_no_longer_than_their_requests() -> None:
    protocol = connected(_nothing_here)
    protocol.data_received(request_bytes({"inputs": "cat"}))
    assert protocol.cycle.body
    await asyncio.sleep(0.01)
    assert protocol.cycle.response_complete
    assert not protocol.cycle.body


async def test_reading_goes_on_behind_a_large_body_that_came_at_once() -> None:
    """While nothing is read, no one sees the client leave, and its request is computed for no one."""
    head, _, body = request_bytes({"inputs": "cat " * 25_000}).partition(b"{")
    read = bytearray()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, send
        while (message := await receive()).get("more_body"):
            read.extend(message["body"])
        read.extend(message["body"])
        await asyncio.sleep(60)

    protocol = connected(answer)
    protocol.data_received(head)
    await asyncio.sleep(0.01)
    protocol.data_received(b"{" + body)
    await asyncio.sleep(0.01)
    assert read == b"{" + body
    assert not protocol.flow.read_paused
    for task in protocol.tasks:
        task.cancel()


@pytest.mark.parametrize(("unread", "seconds"), [(0, 2), (60_000, 11), (70_000, 16)])
async def test_answer_that_ends_its_connection_may_be_read_as_slowly_as_others(unread: int, seconds: int) -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        scope[CONNECTION_KEY].begin_answer()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    protocol = connected(answer)
    assert isinstance(protocol.transport, Mock)
    protocol.transport.get_write_buffer_size.return_value = unread
    if unread > HIGH_WATER_LIMIT:
        protocol.transport.writelines.side_effect = lambda _: protocol.pause_writing()
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n" * 2)
    await asyncio.sleep(0.01)
    protocol.transport.write_eof.assert_called_once()
    assert not protocol.pipeline
    now = protocol.loop.time()
    protocol.enforce_timeouts(now + seconds - 1)
    protocol.transport.abort.assert_not_called()
    protocol.enforce_timeouts(now + seconds + 1)
    protocol.transport.abort.assert_called_once()


def test_a_connection_that_is_over_is_gone_without_a_collection() -> None:
    async def test() -> None:
        protocol = connected(_nothing_here)
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        await asyncio.sleep(0.01)
        protocol.connection_lost(None)
        reference = weakref.ref(protocol)
        del protocol
        assert reference() is None

    gc.disable()
    try:
        asyncio.run(test())
    finally:
        gc.enable()


async def _nothing_here(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


def connected(app: Any, early: Any = None, loop: Any = None) -> BoundedProtocol:
    """A connection whose transport is a mock."""
    limits: dict[str, Any] = {"max_header_bytes": 1000, "receive_timeout": 9.0, "send_timeout": 9.0}
    settings = Settings.model_construct(model=Path("any"), min_send_rate=10_000, **limits)
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    parts: dict[str, Any] = {"settings": settings, "slots": ConnectionSlots(1), "early": early or Mock(is_alert=False)}
    made = BoundedProtocol(config, ServerState(), {}, loop, on_refused=Mock(), **parts)
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value, transport.get_extra_info.return_value = False, None
    transport.get_write_buffer_size.return_value = 0
    made.connection_made(transport)
    return made


def test_offer_to_upgrade_is_declined_and_the_request_answered(server: ServerProcess) -> None:
    """Java's HTTP client offers h2c with its first request, body and all."""
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB")
    with server.connect() as connection:
        sent = request_bytes({"inputs": "cat"}, *upgrade)
        for part in (sent[:40], sent[40:-5], sent[-5:], sent + request_bytes({"inputs": "dog"})):
            connection.sendall(part)
            time.sleep(0.05)
        for _ in range(3):
            status, _, body = read_answer(connection)
            assert (status, json.loads(body)["usage"]) == (200, {"tokens": 3})


@pytest.mark.parametrize("received", [15, PART_BYTES - 100_000])
def test_client_that_leaves_amid_a_large_answer_is_counted(server: ServerProcess, received: int) -> None:
    name = "polyhead_client_disconnects_total"
    before = metric(server, name)
    with server.connect(large_request(400), room=65_536) as connection:
        while received > 0:  # some leave when the server is about to write, and only the write finds them gone
            part = connection.recv(min(received, 65_536))
            assert part, "the server left first"
            received -= len(part)
    wait_until(lambda: metric(server, name) == before + 1)
    wait_until(lambda: metric(server, "polyhead_requests_in_flight") == 1)  # the one that asks
