import asyncio
import gzip
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from service.errors import NotAcceptable
from service.http.body import check_accept
from service.http.response import (
    JSON,
    PART_BYTES,
    SAFETENSORS,
    SMALLEST_BYTES,
    UNBUFFERED_MAX_BYTES,
    ZERO_COPY_MIN_BYTES,
    accepts_gzip,
    prefers_safetensors,
    quality,
    respond,
)
from service.wire import Piece
from tests.service.conftest import Served


@pytest.mark.parametrize(
    ("accept", "json", "safetensors"),
    [
        ("application/json", 1, 0),
        ("*/*", 1, 1),
        ("application/*;q=0.5", 0.5, 0.5),
        ("*/*;q=0.1, application/json;q=0.7", 0.7, 0.1),
        ("application/json; q=0, */*", 0, 1),
        ("Application/VND.safetensors ; Q=0.3", 0, 0.3),
        ("application/json;charset=utf-8;q=0.2", 0.2, 0),
        ("application/json;q=x, text/html", 1, 0),
        ("text/html", 0, 0),
        ("", 0, 0),
    ],
)
def test_quality_is_that_of_the_narrowest_range(accept: str, json: float, safetensors: float) -> None:
    assert quality(accept.encode(), JSON) == json
    assert quality(accept.encode(), SAFETENSORS) == safetensors


def test_ranges_without_end_take_no_time(served: Served) -> None:
    for character in (",", ";", "a,", ";q=0.1,"):
        header = (character * 32_000)[:32_000]
        begun = time.thread_time()
        with pytest.raises(NotAcceptable, match="Accept: more than"):
            check_accept({b"accept": header.encode()}, (JSON, SAFETENSORS))
        assert not accepts_gzip(header.encode())
        assert time.thread_time() - begun < 0.005, character  # 32 KB of commas took 60 ms
        assert served.encode({"inputs": "cat"}, accept=header).json()["error"]["param"] == "Accept"


@pytest.mark.parametrize(
    ("chooses", "header", "expected"),
    [
        *((prefers_safetensors, accept, False) for accept in (None, "*/*", "application/*", "application/json")),
        (prefers_safetensors, "application/vnd.safetensors", True),
        (prefers_safetensors, "application/vnd.safetensors, */*", True),
        (prefers_safetensors, "application/vnd.safetensors, application/json", True),
        (prefers_safetensors, "application/vnd.safetensors;q=0.5, application/json", False),
        (prefers_safetensors, "application/vnd.safetensors, application/json;q=0.5", True),
        (prefers_safetensors, "application/vnd.safetensors;q=0", False),
        *((accepts_gzip, accept, True) for accept in ("gzip", "GZIP", "br, gzip;q=0.5", "*")),
        *((accepts_gzip, accept, False) for accept in (None, "", "identity", "deflate, br")),
        *((accepts_gzip, accept, False) for accept in ("gzip;q=0", "gzip;q=0, *", "*;q=0")),
    ],
)
def test_who_gets_safetensors_and_gzip(chooses: Callable[..., bool], header: str | None, expected: bool) -> None:
    assert chooses(None if header is None else header.encode()) is expected


async def asks_for_nothing() -> Any:
    raise AssertionError("a response reads no request")


def sent(pieces: list[Piece], **headers: str) -> list[dict[str, Any]]:
    """The messages of a response."""
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(respond(pieces, "text/plain", headers)({"type": "http"}, asks_for_nothing, send))
    return messages


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([0], [0]),
        ([5], [5]),
        ([2, 3], [5]),
        ([2, UNBUFFERED_MAX_BYTES - 2], [UNBUFFERED_MAX_BYTES]),
        ([3, UNBUFFERED_MAX_BYTES - 2], [UNBUFFERED_MAX_BYTES + 1, 0]),
        ([PART_BYTES, 1], [PART_BYTES, 1, 0]),
        ([1, PART_BYTES - 2, 2, 7, PART_BYTES * 3, 4], [PART_BYTES + 1, PART_BYTES * 3 + 7, 4, 0]),
    ],
)
def test_a_body_is_sent_in_parts_and_a_large_one_ends_once_it_is_read(sizes: list[int], parts: list[int]) -> None:
    pieces: list[Piece] = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
    start, *bodies = sent(pieces, vary="accept-encoding")
    assert dict(start["headers"])[b"content-length"] == b"%d" % sum(sizes)
    assert dict(start["headers"])[b"content-type"] == b"text/plain; charset=utf-8"
    assert dict(start["headers"])[b"vary"] == b"accept-encoding"
    assert [len(message.get("body", b"")) for message in bodies] == parts
    assert b"".join(message.get("body", b"") for message in bodies) == b"".join(pieces)
    assert [message.get("more_body", False) for message in bodies] == [True] * (len(parts) - 1) + [False]


def test_large_arrays_are_sent_from_where_they_are() -> None:
    large, small = memoryview(bytes(ZERO_COPY_MIN_BYTES)), memoryview(bytes(ZERO_COPY_MIN_BYTES - 1))
    _, *bodies, end = sent([b"head", small, large, large, b"between", small, large])
    assert end == {"type": "http.response.body"}
    whole, copied = ZERO_COPY_MIN_BYTES, ZERO_COPY_MIN_BYTES - 1
    assert [len(message["body"]) for message in bodies] == [4 + copied, whole, whole, 7 + copied, whole]
    assert bodies[1]["body"] is bodies[2]["body"] is bodies[4]["body"] is large


def test_nothing_more_is_sent_once_a_write_finds_the_client_gone() -> None:
    """Such a write does not wait, and the connection is told in the loop's next turn, which ends the request."""
    bodies: list[Any] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message)
            request = asyncio.current_task()
            assert request is not None
            asyncio.get_running_loop().call_soon(request.cancel)

    async def answer() -> None:
        await respond([b"a" * PART_BYTES] * 3, "text/plain")({"type": "http"}, asks_for_nothing, send)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(answer())
    assert len(bodies) == 1


LARGE: dict[str, Any] = {"inputs": ["the cat sat on a mat " * 2] * 40, "attention": {"layers": [0, 1]}}


def raw(served: Served, body: dict[str, Any], **headers: str) -> tuple[Any, bytes]:
    """The response and its bytes as they were sent."""
    with served.client.stream("POST", "/encode", json=body, headers=headers) as response:
        return response, b"".join(response.iter_raw())


def test_large_attention_is_compressed_and_reads_back(served: Served) -> None:
    plain, whole = raw(served, LARGE, **{"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert len(whole) >= SMALLEST_BYTES
    response, sent = raw(served, LARGE, **{"accept-encoding": "gzip"})
    assert response.headers["content-encoding"] == "gzip"
    assert response.headers["vary"] == "accept-encoding"
    assert int(response.headers["content-length"]) == len(sent) < len(whole) / 2
    assert json.loads(gzip.decompress(sent)) == json.loads(whole)


def test_other_answers_are_sent_as_they_are(served: Served) -> None:
    for body, headers in (
        ({**LARGE, "inputs": "the cat"}, {}),
        ({**LARGE, "encoding_format": "base64"}, {}),
        ({**LARGE, "inputs": LARGE["inputs"] * 20, "attention": None}, {}),
        (LARGE, {"accept": "application/vnd.safetensors"}),
    ):
        response, sent = raw(served, body, **{"accept-encoding": "gzip", **headers})
        assert response.status_code == 200
        assert "content-encoding" not in response.headers
        assert int(response.headers["content-length"]) == len(sent)
