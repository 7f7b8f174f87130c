"""Requests that are broken, that want much, or that the OpenAPI document allows, to a service with the real model.

What wants much is small: texts that grow while they are read, or hold nothing but what is hard to read. All are
answered in time and in bounded memory, and the service is well afterwards.
"""

import json
import os
import random
import re
import socket
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.service.process import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def server(default_artifact: Path) -> Iterator[ServerProcess]:
    """A service of the module's own on the default model, which must log no error."""
    with ServerProcess("service", "--model", str(default_artifact)) as process:
        yield process.wait_until_ready()
        assert process.stop() == 0
        assert '"level":"error"' not in process.log


CHARACTERS = 131_072  # the most that one text may have
BODY_BYTES = 2 * 1024 * 1024 - 64  # just under the most that a body may have
SECONDS = 45.0  # a few at most on an idle machine
GROWTH = 320e6  # bytes: one request's tokenising, on two threads at most, and the run; 1,200e6 were seen without limits

BOMBS: dict[str, object] = {
    "one word": "a" * CHARACTERS,
    "combining marks on one letter": "e" + "\u0301\u0323" * (CHARACTERS // 2 - 1),
    "ligature of 18 letters": "\ufdfa" * CHARACTERS,
    "directions and joiners": "\u202e\u2066\u200d\u2069" * (CHARACTERS // 4),
    "Hangul in parts": "\u1100\u1161\u11a8" * (CHARACTERS // 3),
    "every character a token": "!" * CHARACTERS,
    "every text cut": ["!" * 1000] * 2000,
    "no characters": "\0" * CHARACTERS,
    "blank": " \u3000\t\n" * (CHARACTERS // 4),
    "beyond the basic plane": "\U0001f469\u200d\U0001f680" * (CHARACTERS // 4),
}


def most_memory(server: ServerProcess) -> int:
    """Most bytes that were resident at any time."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("route", ["/encode", "/tokenize"])
def test_texts_that_want_much(server: ServerProcess, route: str, name: str) -> None:
    before, started = most_memory(server), time.monotonic()
    status, _, body = server.request("POST", route, {"inputs": BOMBS[name]})
    assert time.monotonic() - started < SECONDS
    assert most_memory(server) - before < GROWTH
    assert status in {200, 413, 429}, body[:500]
    assert status == 200 or "error" in json.loads(body)
    assert server.request("GET", "/healthz")[0] == 200


@pytest.mark.parametrize("text", ["!" * BODY_BYTES, "a " * (BODY_BYTES // 2), "\u65e5" * (BODY_BYTES // 6)])
def test_a_text_as_large_as_a_body_is_refused_unread(server: ServerProcess, text: str) -> None:
    before = most_memory(server)
    status, _, body = server.request("POST", "/encode", {"inputs": text})
    error = json.loads(body)["error"]
    assert (status, error["param"]) == (413, "inputs.0")
    limit = f"at most {CHARACTERS} a text are taken; send it in parts"
    assert error["message"] == f"inputs[0]: {len(text)} characters, {limit}"
    assert most_memory(server) - before < 40e6


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity", "compress"])
def test_nothing_is_unpacked(server: ServerProcess, encoding: str) -> None:
    packed = zlib.compress(b'{"inputs": "' + b" " * 50_000_000 + b'"}')
    before = most_memory(server)
    with server.connect() as client:
        client.sendall(
            b"POST /encode HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Encoding: %s\r\n"
            b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (encoding.encode(), len(packed), packed)
        )
        assert client.recv(4096).startswith(b"HTTP/1.1 415 ")
    assert most_memory(server) - before < 20e6


BODY = b'{"inputs": ["The cat sat on the mat.", ""], "attention": {"layers": "all", "queries": "cls"}}'
SEEDS = (
    b"POST /encode HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    % (len(BODY), BODY),
    b"POST /encode HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"14\r\n" + b'{"inputs": "chunked"' + b"\r\n1\r\n}\r\n0\r\n\r\n",
    b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nAuthorization: Bearer x\r\n"
    b'Content-Length: 29\r\n\r\n{"input": "text", "model": 1}',
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: 10\r\n"
    b"Content-Type: application/octet-stream\r\nContent-Length: 20\r\n\r\n0123456789\x04\x00\x00\x00abcdef",
    b"GET /info HTTP/1.1\r\nHost: a\r\nX-Request-Id: abc\r\nX-Request-Timeout: 5\r\nAccept: application/json\r\n\r\n",
    b"GET /static/viewer/index.html HTTP/1.1\r\nHost: a\r\nIf-None-Match: x\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
)
TOKENS = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"%00", b"%2e%2e%2f", b"../"),
    *(b":", b" "),
    *(b"Content-Length: 0\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity, chunked\r\n", b"Expect: 100-continue\r\n"),
    *(b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    *(b'{"inputs":' * 40, b"[" * 600, b"1e999", b"-0", b"9" * 400, b'"\\ud800"', b"NaN", b"A" * 5000),
)


def broken_requests(count: int, seed: int) -> Iterator[bytes]:
    """`count` byte strings that were requests once; the same for the same seed."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    for _ in range(count):
        message = bytearray(chance.choice(SEEDS))
        for _ in range(chance.randint(0, 6)):
            _break(message, chance)
        yield bytes(message)


def _break(message: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(message) + 1)
    end = min(len(message), at + chance.choice((1, 1, 2, 8, 64)))
    kind = chance.randrange(6)
    if kind == 0:
        message[at:end] = chance.randbytes(end - at)
    elif kind == 1:
        message[at:at] = chance.choice(TOKENS)
    elif kind == 2:
        del message[at:end]
    elif kind == 3:
        message[at:at] = message[at:end] * chance.choice((2, 16))
    elif kind == 4:
        del message[at:]
    else:
        message += chance.choice(SEEDS)[: chance.randrange(200)]


def send(address: tuple[str, int], message: bytes, *, patience: float) -> bytes:
    """All bytes that come back until the server closes or has nothing more to say for `patience` seconds."""
    answer = b""
    with socket.create_connection(address, timeout=10) as client:
        try:
            client.sendall(message)
            client.shutdown(socket.SHUT_WR)
            client.settimeout(patience)
            while part := client.recv(65536):
                answer += part
        except (ConnectionError, TimeoutError):
            pass
    return answer


COUNT = int(os.environ.get("FUZZ_COUNT", "1500"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_broken_bytes(server: ServerProcess) -> None:
    statuses, before = Counter[int](), 0
    for number, message in enumerate(broken_requests(COUNT, SEED)):
        answer = send(server.address, message, patience=2.0)
        assert not answer or STATUS_LINE.match(answer), (message, answer[:200])
        found = [int(status) for status in STATUS_LINE.findall(answer)]
        faults = [status for status in found if status >= 500 and status != HTTPStatus.NOT_IMPLEMENTED]
        assert not faults, (message, answer[:2000])  # 501 is for a transfer coding that is not spoken here
        statuses.update(found)
        if number == COUNT // 3:
            before = resident_bytes(server.pid)
    assert {200, 400} <= set(statuses), statuses
    assert resident_bytes(server.pid) - before < 64e6
    status, _, body = server.request("POST", "/encode", {"inputs": "still well"})
    assert (status, json.loads(body)["usage"]["tokens"]) == (200, 4)
    assert "The cat sat" not in server.log


CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
LIMIT = 300.0  # seconds
# What is valid depends on the model: which layers, heads, dimensions, prompts and token ids there are. A schema cannot
# say it, so schema-valid requests may be refused; the other checks see to it that they are refused as documented.
EXCLUDED = "positive_data_acceptance"
CASES = 500  # fewer, and something kept it from asking


def test_no_request_breaks_what_the_document_says(server: ServerProcess, tmp_path: Path) -> None:
    host, port = server.address
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
    command += ["--config-file", str(CONFIGURATION), "run", f"http://{host}:{port}/openapi.json"]
    command += ["--checks", "all", "--exclude-checks", EXCLUDED, "--max-examples", "8", "--seed", "1"]
    command += ["--continue-on-failure", "--generation-database", "none", "--suppress-health-check", "all"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)  # noqa: S603 - the library's own program
    cases = re.search(r"(\d+) generated", run.stdout)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert cases, run.stdout[-2000:]
    assert int(cases[1]) >= CASES
