import asyncio
from typing import Any

import pytest

from service.http.pieces import PART_BYTES, UNBUFFERED_MAX_BYTES, ZERO_COPY_MIN_BYTES, respond
from service.wire import Piece


def sent(pieces: list[Piece], **headers: str) -> list[dict[str, Any]]:
    """The messages of a response."""
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        raise AssertionError("a response asks for nothing")

    asyncio.run(respond(pieces, "text/plain", headers)({"type": "http"}, receive, send))
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
    assert [len(message["body"]) for message in bodies] == [
        4 + ZERO_COPY_MIN_BYTES - 1,
        ZERO_COPY_MIN_BYTES,
        ZERO_COPY_MIN_BYTES,
        7 + ZERO_COPY_MIN_BYTES - 1,
        ZERO_COPY_MIN_BYTES,
    ]
    assert bodies[1]["body"] is bodies[2]["body"] is bodies[4]["body"] is large


def test_nothing_more_is_sent_once_a_write_finds_the_client_gone() -> None:
    """Such a write does not wait, and the connection is told in the loop's next turn, where it ends the request."""
    bodies: list[Any] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message)
            request = asyncio.current_task()
            assert request is not None
            asyncio.get_running_loop().call_soon(request.cancel)

    async def receive() -> Any:
        raise AssertionError("a response asks for nothing")

    async def answer() -> None:
        await respond([b"a" * PART_BYTES] * 3, "text/plain")({"type": "http"}, receive, send)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(answer())
    assert len(bodies) == 1
