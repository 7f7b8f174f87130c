"""Small requests that want much: texts that grow while they are read, or hold nothing but what is hard to read.

A running service with the real model and its real tokenizer: answered in time, in bounded memory, and well afterwards.
"""

import json
import re
import time
import zlib
from pathlib import Path

import pytest

from tests.service.process import ServerProcess

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


@pytest.mark.slow
@pytest.mark.alone
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


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("text", ["!" * BODY_BYTES, "a " * (BODY_BYTES // 2), "\u65e5" * (BODY_BYTES // 6)])
def test_a_text_as_large_as_a_body_is_refused_unread(server: ServerProcess, text: str) -> None:
    before = most_memory(server)
    status, _, body = server.request("POST", "/encode", {"inputs": text})
    error = json.loads(body)["error"]
    assert (status, error["param"]) == (413, "inputs.0")
    limit = f"at most {CHARACTERS} a text are taken; send it in parts"
    assert error["message"] == f"inputs[0]: {len(text)} characters, {limit}"
    assert most_memory(server) - before < 40e6


@pytest.mark.slow
@pytest.mark.alone
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
