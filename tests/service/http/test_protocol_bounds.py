"""What a client may hold, by limits that are short: time, bytes of headers, and bytes behind a request."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from service.http.response import PART_BYTES
from tests.service.http.test_protocol import (
    PROBE,
    error_code,
    large_request,
    metric,
    read_answer,
    read_failure,
    request_bytes,
    send_in,
)
from tests.service.process import ServerProcess, fake_server, wait_until

KEY, ANOTHER = "sesame-sesame-sesame-sesame", "another-another-another"
HOST_AND_KEY = ("Host: test", f"Authorization: Bearer {KEY}")
REFUSED = b"POST /encode HTTP/1.1\r\nHost: test\r\nContent-Type: text/csv\r\n"  # up to its length


@pytest.fixture(scope="module")
def strict_server(fake_artifact: Path) -> Iterator[ServerProcess]:
    """Waits half a second for a request, and long for the next one."""
    flags = ("--receive-timeout", "0.6", "--send-timeout", "0.6", "--min-send-rate", str(2**24))
    with fake_server(fake_artifact, *flags, "--keep-alive-timeout", "60").wait_until_ready() as started:
        yield started


@pytest.fixture(scope="module")
def guarded_server(fake_artifact: Path) -> Iterator[ServerProcess]:
    """Takes one host's name, two keys, short headers only, and all the time that a client needs."""
    flags = ("--max-header-bytes", "2000", "--allowed-hosts", "test")
    with fake_server(fake_artifact, *flags, POLYHEAD_API_KEYS=f"{KEY}, {ANOTHER}").wait_until_ready() as started:
        yield started


def chunked_request(*headers: str) -> bytes:
    """A request up to its trailers, with a chunk for each byte of its body."""
    lines = ["POST /encode HTTP/1.1", "Content-Type: application/json", "Transfer-Encoding: chunked", *headers, "", ""]
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"inputs": "cat"}')
    return "\r\n".join(lines).encode() + chunks + b"0\r\n"


def send_without_end(connection: socket.socket) -> None:
    for _ in range(200):
        connection.sendall(b"x")
        time.sleep(0.05)


def assert_closed_in_time(connection: socket.socket) -> None:
    connection.settimeout(5)
    assert connection.recv(1) == b""


@pytest.mark.parametrize("drip", [b"", b"X-A: b\r\n"], ids=["stalls", "drips"])
def test_headers_that_do_not_come_are_cut_off(strict_server: ServerProcess, drip: bytes) -> None:
    started = time.monotonic()
    with strict_server.connect(b"POST /encode HTTP/1.1\r\nHost: test\r\n") as connection:
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
    with strict_server.connect(request_bytes({"inputs": "cat"})[:-3]) as connection:
        assert read_failure(connection) == (408, "close", "request_timeout")
        assert connection.recv(1) == b""
    assert metric(strict_server, 'polyhead_requests_rejected_total{reason="request_timeout"}') == before + 1
    line = json.loads(strict_server.wait_for_line('"status":408'))
    assert (line["route"], line["error"]) == ("/encode", "request_timeout")


def test_body_of_an_answered_request_that_does_not_come_gets_no_second_answer(strict_server: ServerProcess) -> None:
    with strict_server.connect(request_bytes({"inputs": "cat"}, path="/nope")[:-3]) as connection:
        assert read_answer(connection)[0] == 404
        assert connection.recv(1) == b""


def test_answer_that_nobody_reads_is_cut_off(strict_server: ServerProcess) -> None:
    with strict_server.connect(room=4096) as connection:
        for _ in range(8):  # the kernel takes a few megabytes by itself
            connection.sendall(large_request(256))
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
    with strict_server.connect(large_request(texts)) as connection:
        answer = read_answer(connection)[2]
        assert (len(answer) > PART_BYTES) == (texts > 50)
        assert len(json.loads(answer)["embeddings"]) == texts


@pytest.mark.alone
def test_answer_that_is_read_too_slowly_piece_by_piece_is_cut_off(strict_server: ServerProcess) -> None:
    with strict_server.connect(large_request(1000), room=65_536) as connection:
        part = connection.recv(65_536)
        size, received = int(part.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]), 0
        with suppress(ConnectionResetError):
            while part:
                received += len(part)
                time.sleep(0.008)  # no part of the answer takes longer than its rate and the timeout allow
                part = connection.recv(65_536)
        assert PART_BYTES < received < size


def is_established(connection: socket.socket) -> bool:
    """Whether the server's end of a connection still is (proc(5), /proc/net/tcp)."""
    try:
        connection.getpeername()
    except OSError:  # reset
        return False
    client, server = (f":{end[1]:04X}" for end in (connection.getsockname(), connection.getpeername()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(server) and row[2].endswith(client) and row[3] == "01" for row in rows)


@pytest.mark.parametrize(
    "asked",  # and the status that each is answered with
    [
        [],
        # a request behind a blank line is answered (RFC 9112, 2.2)
        [(b"\r\n" + PROBE, 200), (b"\r\n\r\n" + PROBE, 200), (b"\r\n", None)],
        [(REFUSED + b"Content-Length: 4\r\n\r\nab", 415), (b"cd", None)],
    ],
    ids=["nothing", "blank lines between requests", "the rest of a refused body"],
)
def test_a_connection_without_a_request_is_closed(
    strict_server: ServerProcess, asked: list[tuple[bytes, int | None]]
) -> None:
    with strict_server.connect() as connection:
        for sent, status in asked:
            connection.sendall(sent)
            assert status is None or read_answer(connection)[0] == status
        assert_closed_in_time(connection)


def test_quiet_connection_is_kept(strict_server: ServerProcess) -> None:
    with strict_server.connect() as connection:
        for pause in (0, 0.7):  # longer than the timeout of a request that has begun
            time.sleep(pause)
            connection.sendall(PROBE)
            assert read_answer(connection)[0] == 200


@pytest.mark.parametrize("size", [1_900_000, 10_000_000])
@pytest.mark.parametrize("pause", [0, 0.1], ids=["one packet", "two packets"])
def test_refusal_reaches_a_client_that_sends_on_to_close(strict_server: ServerProcess, size: int, pause: float) -> None:
    """Python's urllib closes behind each answer, and looks for none where it could not send all."""
    head = REFUSED + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % size
    with strict_server.connect(head + b"x" * 100_000) as connection:
        time.sleep(pause)
        connection.sendall(b"x" * (size - 100_000))
        assert read_failure(connection) == (415, "close", "unsupported_media_type")
        assert_closed_in_time(connection)


def test_refusal_reaches_a_client_that_sends_on_behind_a_broken_chunk(strict_server: ServerProcess) -> None:
    with strict_server.connect(chunked_request("Host: test").removesuffix(b"0\r\n") + b"nonsense\r\n") as connection:
        for _ in range(20):
            time.sleep(0.01)
            connection.sendall(b"x" * 100_000)
        assert read_failure(connection) == (400, "close", "malformed_request")
        assert_closed_in_time(connection)


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
def test_declined_upgrade_changes_nothing(strict_server: ServerProcess, version: str, said: str, is_kept: bool) -> None:
    head = f"GET /healthz HTTP/{version}\r\nHost: test\r\nConnection: {said}\r\nUpgrade: h2c\r\n\r\n".encode()
    with strict_server.connect(head) as connection:
        status, headers, _ = read_answer(connection)
        assert (status, "connection" in headers) == (200, not is_kept)
        if is_kept:
            connection.sendall(head)
            assert read_answer(connection)[0] == 200
        else:
            assert headers["connection"] == "close"
            assert_closed_in_time(connection)


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"nonsense\r\n\r\n", 400), (REFUSED + b"Connection: close\r\nContent-Length: 1000000\r\n\r\n", 415)],
)
def test_refused_client_without_end_is_cut_off(strict_server: ServerProcess, sent: bytes, status: int) -> None:
    with strict_server.connect(sent) as connection:
        assert read_answer(connection)[0] == status
        assert_closed_in_time(connection)
        with pytest.raises(OSError, match="reset|Broken pipe"):
            send_without_end(connection)


@pytest.mark.parametrize("pieces", [1, 12])  # the trailer in the last one
@pytest.mark.parametrize(
    ("headers", "trailer", "expected"),
    [
        ({}, "Host: evil.example", 200),
        ({}, "Authorization: Bearer wrong", 200),
        ({}, "X-Request-Id: trailer", 200),
        ({}, "X-Request-Timeout: 0", 200),
        ({"Host": "evil.example"}, "Host: test", 400),
        ({"Authorization": "Bearer wrong"}, f"Authorization: Bearer {KEY}", 401),
    ],
)
def test_a_trailer_changes_no_header_and_lets_nobody_in(
    guarded_server: ServerProcess, headers: dict[str, str], trailer: str, expected: int, pieces: int
) -> None:
    usual = {"Host": "test", "Authorization": f"Bearer {KEY}", "X-Request-Id": "head", "X-Request-Timeout": "30"}
    with guarded_server.connect() as connection:
        sent = chunked_request(*(f"{name}: {value}" for name, value in (usual | headers).items()))
        send_in(connection, sent + f"{trailer}\r\n\r\n".encode(), pieces)
        status, answered, _ = read_answer(connection)
    assert (status, answered["x-request-id"]) == (expected, "head")


def test_keys_of_the_environment_are_taken_and_shown_nowhere(guarded_server: ServerProcess) -> None:
    for key, status in ((None, 401), ("wrong", 401), (KEY, 200), (ANOTHER, 200)):
        sent = {} if key is None else {"Authorization": f"Bearer {key}"}
        found, _, _ = guarded_server.request("POST", "/encode", {"inputs": "cat"}, Host="test", **sent)
        assert found == status
    paths = ("/metrics", "/healthz")
    pages = b"".join(guarded_server.request("GET", path, host="test", x_request_id="page")[2] for path in paths)
    wait_until(lambda: guarded_server.log.count('"request_id":"page"') == len(paths))
    for key in (KEY, ANOTHER):
        assert key not in guarded_server.log
        assert key.encode() not in pages


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
def test_headers_over_the_limit_get_431(guarded_server: ServerProcess, head: bytes, pieces: int) -> None:
    with guarded_server.connect() as connection:
        send_in(connection, head, pieces)
        assert read_failure(connection) == (431, "close", "headers_too_large")


@pytest.mark.parametrize("endless", [b"X-Long: ", b"5;extension="])
def test_what_never_ends_behind_a_body_is_cut_off(guarded_server: ServerProcess, endless: bytes) -> None:
    """Each piece alone is within the limit, the last of them passes it; the parser would keep them all."""
    start = chunked_request(*HOST_AND_KEY).removesuffix(b"" if endless.startswith(b"X") else b"0\r\n")
    with guarded_server.connect(start + endless) as connection:
        for _ in range(4):
            time.sleep(0.02)
            connection.sendall(b"a" * 510)
        assert read_failure(connection) == (431, "close", "headers_too_large")


def test_headers_within_the_limit_and_a_body_in_many_pieces_pass(guarded_server: ServerProcess) -> None:
    assert guarded_server.request("GET", "/healthz", x_long="a" * 1700)[0] == 200
    with guarded_server.connect() as connection:
        send_in(connection, request_bytes({"inputs": "cat " * 2000}, HOST_AND_KEY[1]), 12)
        assert read_answer(connection)[0] == 200
