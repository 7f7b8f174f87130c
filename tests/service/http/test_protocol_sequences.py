"""Bytes behind a request's head, or behind the request: trailers, blank lines, bodies that break off."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.http.test_protocol import error_code, metric, read_answer, request_bytes, send_for
from tests.service.process import ServerProcess, fake_server, wait_until

KEY = "sesame-sesame-sesame-sesame"
BODY = json.dumps({"inputs": "cat"}).encode()


def chunked_request(*headers: str) -> bytes:
    """A request up to its trailers."""
    lines = ["POST /encode HTTP/1.1", "Content-Type: application/json", "Transfer-Encoding: chunked", *headers, "", ""]
    return "\r\n".join(lines).encode() + b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)


@pytest.fixture(scope="module")
def guarded_server(fake_artifact: Path) -> Iterator[ServerProcess]:
    """Takes one host's name and one key."""
    flags = ("--allowed-hosts", "good.example")
    with fake_server(fake_artifact, *flags, POLYHEAD_API_KEYS=KEY).wait_until_ready() as started:
        yield started


def answer_with_trailers(
    server: ServerProcess, headers: list[str], trailers: list[str], pause: float
) -> tuple[int, dict[str, str], bytes]:
    sent = "\r\n".join([*trailers, "", ""]).encode()
    with server.connect() as connection:
        if pause:
            connection.sendall(chunked_request(*headers))
            time.sleep(pause)
            connection.sendall(sent)
        else:
            connection.sendall(chunked_request(*headers) + sent)
        return read_answer(connection)


@pytest.mark.parametrize("pause", [0, 0.2], ids=["one packet", "two packets"])
@pytest.mark.parametrize(
    "trailer", ["Host: evil.example", "Authorization: Bearer wrong", "X-Request-Id: trailer", "X-Request-Timeout: 0"]
)
def test_trailer_changes_no_header(guarded_server: ServerProcess, trailer: str, pause: float) -> None:
    headers = ["Host: good.example", f"Authorization: Bearer {KEY}", "X-Request-Id: head", "X-Request-Timeout: 30"]
    status, answered, _ = answer_with_trailers(guarded_server, headers, [trailer], pause)
    assert (status, answered["x-request-id"]) == (200, "head")


@pytest.mark.parametrize("pause", [0, 0.2], ids=["one packet", "two packets"])
@pytest.mark.parametrize(
    ("header", "expected"), [("Host: evil.example", 400), ("Authorization: Bearer wrong", 401)], ids=["host", "key"]
)
def test_trailers_let_nobody_in(guarded_server: ServerProcess, header: str, expected: int, pause: float) -> None:
    good = ["Host: good.example", f"Authorization: Bearer {KEY}"]
    headers = [header, *(line for line in good if not line.startswith(header.partition(":")[0]))]
    assert answer_with_trailers(guarded_server, headers, good, pause)[0] == expected


@pytest.fixture(scope="module")
def strict_server(fake_artifact: Path) -> Iterator[ServerProcess]:
    """Waits half a second for a request, and long for the next one."""
    flags = ("--receive-timeout", "0.5", "--send-timeout", "0.5")
    with fake_server(fake_artifact, *flags, "--keep-alive-timeout", "60").wait_until_ready() as started:
        yield started


def test_blank_line_between_requests_does_not_hold_the_connection(strict_server: ServerProcess) -> None:
    with strict_server.connect() as connection:
        for _ in range(2):  # a request behind a blank line is answered (RFC 9112, 2.2)
            connection.sendall(b"\r\nGET /healthz HTTP/1.1\r\nHost: test\r\n\r\n")
            assert read_answer(connection)[0] == 200
            connection.sendall(b"\r\n")
        assert_closed_in_time(connection)


def test_rest_of_a_refused_body_does_not_hold_the_connection(strict_server: ServerProcess) -> None:
    with strict_server.connect() as connection:
        connection.sendall(
            b"POST /encode HTTP/1.1\r\nHost: test\r\nContent-Type: text/csv\r\nContent-Length: 4\r\n\r\nab"
        )
        assert read_answer(connection)[0] == 415
        connection.sendall(b"cd")
        assert_closed_in_time(connection)


def test_quiet_connection_is_kept(strict_server: ServerProcess) -> None:
    with strict_server.connect() as connection:
        for pause in (0, 0.7):  # longer than the timeout of a request that has begun
            time.sleep(pause)
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n")
            assert read_answer(connection)[0] == 200


@pytest.mark.parametrize("size", [1_900_000, 10_000_000])
@pytest.mark.parametrize("pause", [0, 0.1], ids=["one packet", "two packets"])
def test_refusal_reaches_a_client_that_sends_on_and_wants_to_close(
    strict_server: ServerProcess, size: int, pause: float
) -> None:
    """Python's urllib closes behind each answer, and looks for none where it could not send all."""
    head = b"POST /encode HTTP/1.1\r\nHost: test\r\nContent-Type: text/csv\r\nConnection: close\r\n"
    with strict_server.connect() as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % size + b"x" * 100_000)
        time.sleep(pause)
        connection.sendall(b"x" * (size - 100_000))
        status, headers, body = read_answer(connection)
        assert (status, headers["connection"], error_code(body)) == (415, "close", "unsupported_media_type")
        assert_closed_in_time(connection)


def test_refusal_reaches_a_client_that_sends_on_behind_a_broken_chunk(strict_server: ServerProcess) -> None:
    with strict_server.connect() as connection:
        connection.sendall(chunked_request("Host: test").removesuffix(b"0\r\n") + b"nonsense\r\n")
        for _ in range(20):
            time.sleep(0.01)
            connection.sendall(b"x" * 100_000)
        status, headers, body = read_answer(connection)
        assert (status, headers["connection"], error_code(body)) == (400, "close", "malformed_request")
        assert_closed_in_time(connection)


def test_refused_client_that_sends_on_without_end_is_cut_off(strict_server: ServerProcess) -> None:
    with strict_server.connect() as connection:
        connection.sendall(
            b"POST /encode HTTP/1.1\r\nHost: test\r\nContent-Type: text/csv\r\nConnection: close\r\n"
            b"Content-Length: 1000000\r\n\r\n"
        )
        assert read_answer(connection)[0] == 415
        assert_closed_in_time(connection)
        with pytest.raises(OSError, match="reset|Broken pipe"):
            send_for(10, connection)


def assert_closed_in_time(connection: socket.socket) -> None:
    connection.settimeout(5)
    assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("version", "said", "is_kept"),
    [
        ("1.1", "Upgrade", True),
        ("1.1", "keep-alive, Upgrade, HTTP2-Settings", True),
        ("1.1", "close, Upgrade", False),
        ("1.1", "Upgrade,Close", False),
        ("1.0", "Upgrade", False),
    ],
)
def test_declined_upgrade_changes_nothing_else(
    strict_server: ServerProcess, version: str, said: str, is_kept: bool
) -> None:
    with strict_server.connect() as connection:
        head = f"GET /healthz HTTP/{version}\r\nHost: test\r\nConnection: {said}\r\nUpgrade: h2c\r\n\r\n".encode()
        connection.sendall(head)
        status, headers, _ = read_answer(connection)
        assert (status, "connection" in headers) == (200, not is_kept)
        if is_kept:
            connection.sendall(head)
            assert read_answer(connection)[0] == 200
        else:
            assert headers["connection"] == "close"
            assert_closed_in_time(connection)


def test_trailers_over_the_limit_close_the_connection(narrow_server: ServerProcess) -> None:
    with narrow_server.connect() as connection:
        connection.sendall(chunked_request("Host: test") + b"X-Long: " + b"a" * 3000 + b"\r\n\r\n")
        status, headers, body = read_answer(connection)
        assert (status, headers["connection"], error_code(body)) == (431, "close", "headers_too_large")
        assert_closed_in_time(connection)


@pytest.mark.parametrize("endless", [b"X-Long: ", b"5;extension="])
def test_what_never_ends_behind_a_body_is_cut_off(narrow_server: ServerProcess, endless: bytes) -> None:
    """Each piece alone is within the limit, the last of them passes it; the parser would keep them all."""
    start = chunked_request("Host: test")
    with narrow_server.connect() as connection:
        connection.sendall((start if endless.startswith(b"X") else start.removesuffix(b"0\r\n")) + endless)
        for _ in range(4):
            time.sleep(0.02)
            connection.sendall(b"a" * 510)
        status, headers, body = read_answer(connection)
        assert (status, headers["connection"], error_code(body)) == (431, "close", "headers_too_large")


def test_a_body_in_many_pieces_is_no_header(narrow_server: ServerProcess) -> None:
    text = json.dumps({"inputs": "cat " * 2000}).encode()
    head = b"POST /encode HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with narrow_server.connect() as connection:
        connection.sendall(head % len(text))
        for start in range(0, len(text), 700):
            connection.sendall(text[start : start + 700])
            time.sleep(0.005)
        assert read_answer(connection)[0] == 200


def test_expectation_of_an_http_1_0_client_is_ignored(strict_server: ServerProcess) -> None:
    """RFC 9110, 10.1.1: such a client takes an interim answer for the answer."""
    sent = request_bytes({"inputs": "cat"}, "Expect: 100-continue")
    for version, expected in ((b"HTTP/1.1", 100), (b"HTTP/1.0", 200)):
        with strict_server.connect() as connection:
            connection.sendall(sent.replace(b"HTTP/1.1", version))
            assert connection.recv(12) == b"HTTP/1.1 %d" % expected


@pytest.mark.parametrize("path", ["/healthz", "/nowhere"])
def test_what_a_client_that_half_closed_is_not_sent_counts_as_abandoned(
    strict_server: ServerProcess, path: str
) -> None:
    before, known = metric(strict_server, "polyhead_client_disconnects_total"), len(strict_server.lines)
    with strict_server.connect() as connection:
        strict_server.signal(signal.SIGSTOP)  # requests and end are found together
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode() * 3)
        connection.shutdown(socket.SHUT_WR)
        strict_server.signal(signal.SIGCONT)
        read_answer(connection)
        assert connection.recv(1) == b""
    wait_until(lambda: metric(strict_server, "polyhead_client_disconnects_total") == before + 1)
    assert not [line for line in strict_server.lines[known:] if '"level":"error"' in line]


@pytest.fixture
def slow_server(fake_artifact: Path) -> Iterator[ServerProcess]:
    """0.3 s a run."""
    with fake_server(fake_artifact, "--drain-delay", "2", FAKE_RUN_SECONDS="0.3").wait_until_ready() as started:
        yield started


def test_answer_arrives_whole_where_the_end_of_the_process_leaves_others_out(slow_server: ServerProcess) -> None:
    body = {"inputs": ["cat " * 14] * 60, "attention": {"layers": "all"}}
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        connection.connect(slow_server.address)
        connection.sendall(request_bytes(body) * 12)
        wait_until(lambda: metric(slow_server, "polyhead_requests_in_flight") == 2)
        connection.sendall(request_bytes(body))  # bytes behind it are not answered
        slow_server.signal(signal.SIGTERM)
        connection.settimeout(10)
        status, headers, answer = read_answer(connection)
        assert (status, headers["connection"], len(json.loads(answer)["attention"])) == (200, "close", 60)
        assert_closed_in_time(connection)
    assert slow_server.wait() == 0
