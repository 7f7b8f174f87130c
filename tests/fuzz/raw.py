"""Requests broken byte by byte, and a client that sends them as they are."""

import random
import socket
from collections.abc import Iterator

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
