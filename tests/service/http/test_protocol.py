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

from service.http.connection import CONNECTION_KEY, ConnectionLimits, ConnectionSlots
from service.http.protocol import MOST_PIPELINED, BoundedProtocol
from service.http.response import PART_BYTES
from tests.service.process import ServerProcess, fake_server, read_sample, wait_until

PROBE = b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n"


def request_bytes(body: Any, *headers: str, path: str = "/encode") -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


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
    connection = slow_server.connect()
    connection.sendall(request_bytes({"inputs": ["cat " * 14] * 200}))  # more than a worker takes in hand
    wait_until(lambda: metric(slow_server, "polyhead_queue_texts") > 0)
    connection.close()
    wait_until(lambda: metric(slow_server, "polyhead_queue_texts") == 0)  # computed, they would stand there for 80 s
    assert metric(slow_server, "polyhead_client_disconnects_total") == before + 1
    wait_until(lambda: metric(slow_server, "polyhead_requests_in_flight") == 1)
    slow_server.wait_for_line('"status":499')
    assert slow_server.request("POST", "/encode", {"inputs": "cat"})[0] == 200


def test_client_that_leaves_inside_its_body_is_counted(server: ServerProcess) -> None:
    before = metric(server, "polyhead_client_disconnects_total")
    with server.connect() as connection:
        connection.sendall(request_bytes({"inputs": "cat"})[:-5])
        wait_until(lambda: metric(server, "polyhead_requests_in_flight") == 2)
    wait_until(lambda: metric(server, "polyhead_client_disconnects_total") == before + 1)


def test_client_that_leaves_after_its_answer_is_not_counted(server: ServerProcess) -> None:
    before = metric(server, "polyhead_client_disconnects_total")
    for path in ("/docs", "/info", "/healthz"):
        with server.connect() as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
            assert read_answer(connection)[0] == 200
    assert metric(server, "polyhead_client_disconnects_total") == before


def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    with server.connect() as connection:
        connection.sendall(b"".join(request_bytes({"inputs": ["cat"] * count}) for count in (1, 2, 3)))
        received = b""
        while received.count(b"HTTP/1.1 200") < 3 or not received.endswith(b"}]}"):
            received += connection.recv(65536)
    assert [received.find(f'"usage":{{"tokens":{3 * count}}}'.encode()) > 0 for count in (1, 2, 3)] == [True] * 3


def test_refused_length_is_answered_before_the_body_is_sent(server: ServerProcess) -> None:
    with server.connect() as connection:
        connection.sendall(
            b"POST /encode HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
            b"Content-Length: 10000000\r\nExpect: 100-continue\r\n\r\n"
        )
        status, headers, _ = read_answer(connection)
        assert (status, headers.get("connection")) == (413, "close"), "its body may still come, or the next request"
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /encode HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /encode HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
        b"POST /encode HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /encode HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET ? HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /healthz HTTP/2.0\r\nHost: test\r\n\r\n",
        b"GET /healthz HTTP/0.9\r\nHost: test\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
    ],
)
def test_what_is_no_http_gets_400_in_the_one_body(server: ServerProcess, sent: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(sent)
        status, headers, body = read_answer(connection)
        assert status == 400
        assert headers["connection"] == "close"
        assert headers["content-type"] == "application/json"
        assert headers["x-content-type-options"] == "nosniff"
        error = json.loads(body)["error"]
        assert (error["code"], error["param"]) == ("malformed_request", None)
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("header", "status", "code"),
    [  # Python reads no number of more than 4,300 digits: that was a failure of ours
        *((f"Content-Length: {'0' * size}2", 400, "malformed_request") for size in (4400, 20)),
        ("Transfer-Encoding: gzip, chunked", 501, "unsupported_transfer_coding"),
        ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", 501, "unsupported_transfer_coding"),
    ],
)
def test_a_length_or_coding_that_is_not_read_is_said_so(
    server: ServerProcess, header: str, status: int, code: str
) -> None:
    with server.connect() as connection:
        head = f"POST /encode HTTP/1.1\r\nHost: test\r\n{header}\r\n\r\n"
        connection.sendall(head.encode() + b"2\r\n{}\r\n0\r\n\r\n")
        found, _, body = read_answer(connection)
        assert (found, error_code(body)) == (status, code)


CHUNKED = b"POST /encode HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


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
    with server.connect() as connection:
        connection.sendall(CHUNKED)
        with suppress(OSError):  # it may be closed meanwhile
            for _ in range(40):
                connection.sendall(chunk * (1_000_000 // len(chunk)))
        found, _, body = read_answer(connection)
        assert (found, error_code(body)) == (status, code)


def test_a_body_in_small_chunks_is_read(server: ServerProcess) -> None:
    with server.connect() as connection:
        connection.sendall(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"inputs": "cat"}') + b"0\r\n\r\n")
        assert read_answer(connection)[0] == 200


@pytest.mark.parametrize("offer", ["", "Connection: Upgrade\r\nUpgrade: h2c\r\n"], ids=["", "upgrade"])
@pytest.mark.parametrize(
    ("version", "hosts", "expected"),
    [("1.1", 0, 400), ("1.1", 1, 200), ("1.1", 2, 400), ("1.0", 0, 200), ("1.0", 1, 200), ("1.0", 2, 400)],
)
def test_a_request_has_one_host(server: ServerProcess, version: str, hosts: int, expected: int, offer: str) -> None:
    """RFC 9112, 3.2; probes of load balancers that speak HTTP/1.0 send none."""
    with server.connect() as connection:
        lines = [f"GET /healthz HTTP/{version}", *["hOst: test"] * hosts]
        connection.sendall(("\r\n".join(lines) + f"\r\n{offer}\r\n").encode())
        status, headers, body = read_answer(connection)
        assert status == expected
        if expected == 400:
            assert (headers["connection"], error_code(body)) == ("close", "malformed_request")
            assert json.loads(body)["error"]["message"] == f"Host: expected one such header, got {hosts}"


@pytest.mark.parametrize("target", ["http://test", "HTTP://test:80", "http://test?x=/y", "http://test/", "/", "/?x"])
def test_a_url_without_a_path_is_the_front_page(server: ServerProcess, target: str) -> None:
    with server.connect() as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        status, headers, _ = read_answer(connection)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")


@pytest.mark.parametrize("waiting", [0, 2])
def test_what_follows_a_request_is_refused_after_its_answer(slow_server: ServerProcess, waiting: int) -> None:
    """A body longer than its Content-Length is one; bytes between the two are answered no more."""
    with slow_server.connect() as connection:
        connection.sendall(request_bytes({"inputs": "cat"}) * (1 + waiting) + b"nonsense\r\n\r\n")
        assert [read_answer(connection)[0] for _ in range(2)] == [200, 400]
        assert connection.recv(1) == b""


def test_requests_ahead_of_answers_are_bounded(server: ServerProcess) -> None:
    with server.connect() as connection:
        connection.sendall(PROBE * (1 + MOST_PIPELINED))
        assert [read_answer(connection)[0] for _ in range(1 + MOST_PIPELINED)] == [200] * (1 + MOST_PIPELINED)
        connection.sendall(PROBE * 10_000)
        received = b""
        while part := connection.recv(1 << 20):
            received += part
        assert b'"code":"malformed_request"' in received
        assert received.count(b"HTTP/1.1 ") <= 2 + MOST_PIPELINED


def test_body_that_breaks_off_into_nonsense_is_refused_once(server: ServerProcess) -> None:
    before = metric(server, 'polyhead_requests_rejected_total{reason="malformed_request"}')
    with server.connect() as connection:
        connection.sendall(
            b"POST /encode HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
            b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"inp\r\nnonsense\r\n'
        )
        status, headers, body = read_answer(connection)
        assert (status, headers["connection"], error_code(body)) == (400, "close", "malformed_request")
        assert connection.recv(1) == b""
    assert metric(server, 'polyhead_requests_rejected_total{reason="malformed_request"}') == before + 1


async def test_bodies_that_nobody_reads_are_kept_no_longer_than_their_requests() -> None:
    protocol = _protocol(_nothing_here)
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

    protocol = _protocol(answer)
    protocol.data_received(head)
    await asyncio.sleep(0.01)
    protocol.data_received(b"{" + body)
    await asyncio.sleep(0.01)
    assert read == b"{" + body
    assert not protocol.flow.read_paused
    for task in protocol.tasks:
        task.cancel()


async def test_reading_goes_on_behind_a_large_body_that_nobody_wants() -> None:
    """Stopped, the client could not send it all, and would be reset."""
    sent = request_bytes({"inputs": "cat " * 25_000}, "Connection: close")

    protocol = _protocol(_nothing_here)
    protocol.data_received(sent[:-1])
    assert protocol.flow.read_paused
    await asyncio.sleep(0.01)
    assert not protocol.flow.read_paused
    assert isinstance(protocol.transport, Mock)
    protocol.transport.write_eof.assert_called_once()
    protocol.transport.close.assert_not_called()


@pytest.mark.parametrize(("unread", "seconds"), [(0, 2), (60_000, 11), (70_000, 16)])
async def test_answer_that_ends_its_connection_may_be_read_as_slowly_as_others(unread: int, seconds: int) -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        scope[CONNECTION_KEY].begin_answer()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    protocol = _protocol(answer)
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
        protocol = _protocol(_nothing_here)
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


def _protocol(app: Any) -> BoundedProtocol:
    limits = ConnectionLimits(max_header_bytes=1000, receive_timeout=9.0, send_timeout=9.0, min_send_rate=10_000)
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    early = Mock(is_alert=False)
    made = BoundedProtocol(
        config, ServerState(), {}, limits=limits, slots=ConnectionSlots(1), early=early, on_refused=Mock()
    )
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value, transport.get_extra_info.return_value = False, None
    transport.get_write_buffer_size.return_value = 0
    made.connection_made(transport)
    return made


def test_offer_to_upgrade_is_declined_and_the_request_answered(server: ServerProcess) -> None:
    """Java's HTTP client offers h2c with its first request, body and all."""
    for path in ("/encode", "/tokenize"):
        upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB")
        with server.connect() as connection:
            sent = request_bytes({"inputs": "cat"}, *upgrade, path=path)
            for part in (sent[:40], sent[40:-5], sent[-5:], sent + request_bytes({"inputs": "dog"})):
                connection.sendall(part)
                time.sleep(0.05)
            for _ in range(3):
                status, _, body = read_answer(connection)
                assert status == 200
                assert json.loads(body)["usage"] == {"tokens": 3}


def test_connect_is_no_request_here(server: ServerProcess) -> None:
    with server.connect() as connection:
        connection.sendall(b"CONNECT /encode HTTP/1.1\r\nHost: test\r\n\r\n")
        assert read_answer(connection)[0] == 400


# A client's bounds, each with a server whose limit is short.

LIMITS = ("--receive-timeout", "0.6", "--send-timeout", "0.6", "--min-send-rate", str(2**24))


@pytest.fixture(scope="module")
def strict_server(fake_artifact: Path) -> Iterator[ServerProcess]:
    with fake_server(fake_artifact, *LIMITS).wait_until_ready() as started:
        yield started


def error_code(body: bytes) -> str:
    code: str = json.loads(body)["error"]["code"]
    return code


@pytest.mark.parametrize("drip", [b"", b"X-A: b\r\n"], ids=["stalls", "drips"])
def test_headers_that_do_not_come_are_cut_off(strict_server: ServerProcess, drip: bytes) -> None:
    started = time.monotonic()
    with strict_server.connect() as connection:
        connection.sendall(b"POST /encode HTTP/1.1\r\nHost: test\r\n")
        connection.settimeout(0.1)
        received = b""
        while not received:
            if drip:
                connection.sendall(drip)
            try:
                received = connection.recv(65536)
            except TimeoutError:
                assert time.monotonic() < started + 15
        assert received.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert error_code(received.partition(b"\r\n\r\n")[2]) == "request_timeout"
    assert 0.6 <= time.monotonic() - started < 15  # the limit's default is 20 s


def test_body_that_does_not_come_is_cut_off(strict_server: ServerProcess) -> None:
    before = metric(strict_server, 'polyhead_requests_rejected_total{reason="request_timeout"}')
    with strict_server.connect() as connection:
        connection.sendall(request_bytes({"inputs": "cat"})[:-3])
        status, headers, body = read_answer(connection)
        assert (status, headers["connection"], error_code(body)) == (408, "close", "request_timeout")
        assert connection.recv(1) == b""
    assert metric(strict_server, 'polyhead_requests_rejected_total{reason="request_timeout"}') == before + 1
    line = json.loads(strict_server.wait_for_line('"status":408'))
    assert (line["route"], line["error"]) == ("/encode", "request_timeout")


def test_client_that_says_nothing_is_cut_off(strict_server: ServerProcess) -> None:
    with strict_server.connect() as connection:
        assert connection.recv(1) == b""


def test_client_that_sends_on_after_its_refusal_is_cut_off(strict_server: ServerProcess) -> None:
    with strict_server.connect() as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        assert read_answer(connection)[0] == 400
        with pytest.raises(OSError, match="reset|Broken pipe"):
            send_for(10, connection)


def send_for(seconds: float, connection: socket.socket) -> None:
    started = time.monotonic()
    while time.monotonic() < started + seconds:
        connection.sendall(b"x")
        time.sleep(0.05)


def test_answer_that_nobody_reads_is_cut_off(strict_server: ServerProcess) -> None:
    body = {"inputs": ["cat " * 14] * 256, "output": "tokens", "attention": {"layers": "all"}}
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(strict_server.address)
        for _ in range(8):  # the kernel takes a few megabytes by itself
            connection.sendall(request_bytes(body))
        wait_until(lambda: metric(strict_server, "polyhead_texts_total") >= 256, seconds=20)
        wait_until(lambda: not is_established(connection), seconds=20)
        received = b""
        with suppress(ConnectionResetError):  # where requests were left unread, the kernel takes back what was sent
            while part := connection.recv(1 << 20):
                received += part
        assert received.count(b"HTTP/1.1 200 OK") < 8


@pytest.mark.alone  # 16 MB are read in a second
@pytest.mark.parametrize("texts", [50, 1000])  # one write, and several
def test_answer_that_is_read_steadily_arrives_whole(strict_server: ServerProcess, texts: int) -> None:
    body = {"inputs": ["cat " * 14] * texts, "output": "tokens", "attention": {"layers": "all"}}
    with strict_server.connect() as connection:
        connection.sendall(request_bytes(body))
        answer = read_answer(connection)[2]
        assert (len(answer) > PART_BYTES) == (texts > 50)
        assert len(json.loads(answer)["embeddings"]) == texts


@pytest.mark.alone
def test_answer_that_is_read_too_slowly_piece_by_piece_is_cut_off(strict_server: ServerProcess) -> None:
    body = {"inputs": ["cat " * 14] * 1000, "output": "tokens", "attention": {"layers": "all"}}
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.connect(strict_server.address)
        connection.sendall(request_bytes(body))
        part = connection.recv(65_536)
        size, received = int(part.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]), 0
        with suppress(ConnectionResetError):
            while part:
                received += len(part)
                time.sleep(0.008)  # no part of the answer takes longer than its rate and the timeout allow
                part = connection.recv(65_536)
        assert PART_BYTES < received < size


@pytest.mark.parametrize("received", [15, *range(3_500_000, PART_BYTES, 200_000)])
def test_client_that_leaves_amid_a_large_answer_is_counted(server: ServerProcess, received: int) -> None:
    body = {"inputs": ["cat " * 14] * 1000, "output": "tokens", "attention": {"layers": "all"}}
    name = "polyhead_client_disconnects_total"
    before = metric(server, name)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.connect(server.address)
        connection.sendall(request_bytes(body))
        while received > 0:  # some leave when the server is about to write, and only the write finds them gone
            part = connection.recv(min(received, 65_536))
            assert part, "the server left first"
            received -= len(part)
    wait_until(lambda: metric(server, name) == before + 1)
    wait_until(lambda: metric(server, "polyhead_requests_in_flight") == 1)  # the one that asks


def is_established(connection: socket.socket) -> bool:
    """Whether the server's end of a connection still is (proc(5), /proc/net/tcp)."""
    try:
        connection.getpeername()
    except OSError:  # reset
        return False
    client, server = (f":{end[1]:04X}" for end in (connection.getsockname(), connection.getpeername()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(server) and row[2].endswith(client) and row[3] == "01" for row in rows)


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: test\r\nX-Long: " + b"a" * 3000 + b"\r\n\r\n",
        b"GET /healthz?" + b"a" * 3000 + b" HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % index for index in range(300)) + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nX-Endless: " + b"a" * 1_000_000,
        b"GET /" + b"a" * 1_000_000,
    ],
    ids=["one long", "long path", "many", "endless", "endless path"],
)
def test_headers_over_the_limit_get_431(narrow_server: ServerProcess, head: bytes, pieces: int) -> None:
    with narrow_server.connect() as connection:
        size = -(-len(head) // pieces)
        for start in range(0, len(head), size):
            connection.sendall(head[start : start + size])
            time.sleep(0.02)
        status, headers, body = read_answer(connection)
        assert (status, headers["connection"], error_code(body)) == (431, "close", "headers_too_large")


def test_headers_within_the_limit_pass(narrow_server: ServerProcess) -> None:
    status, _, _ = narrow_server.request("GET", "/healthz", x_long="a" * 1700)
    assert status == 200
