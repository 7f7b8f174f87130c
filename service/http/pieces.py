"""Answers of megabytes, sent in pieces as the client takes them: copied as a whole, one holds up the event loop."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.wire import Piece

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
PART_BYTES = 2**20
"""A part of an answer is joined and written at once: half a millisecond of copying, two where the memory is new."""
ZERO_COPY_MIN_BYTES = 65_536
"""Arrays of at least so many bytes are sent from where they are, without a copy, which costs a write of its own."""
UNBUFFERED_MAX_BYTES = 65_536
"""asyncio writes as many bytes without asking whether the client reads."""


def respond(pieces: Sequence[Piece], media_type: str, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    """A response whose body these pieces are, at least one."""
    if (size := sum(map(len, pieces))) <= UNBUFFERED_MAX_BYTES:
        return Response(b"".join(pieces), media_type=media_type, headers=headers)
    return PiecesResponse(pieces, size, media_type, headers)


class PiecesResponse(Response):
    """Sends its body in parts, each once the client has read most of the one before, and ends when all was read."""

    def __init__(self, pieces: Sequence[Piece], size: int, media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__(media_type=media_type, headers={**headers, "content-length": str(size)})
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response."""
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in _parts(self._pieces):
            body = part[0] if len(part) == 1 else b"".join(part)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0)  # a write that finds the client gone tells the connection only now
        await send({"type": "http.response.body"})  # waits for the client: what it has not read is still held


def _parts(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """The pieces in groups of at least `PART_BYTES`, or up to a large array, which is a group of its own."""
    part: list[Piece] = []
    size = 0
    for piece in pieces:
        is_uncopied = isinstance(piece, memoryview) and len(piece) >= ZERO_COPY_MIN_BYTES
        if part and (is_uncopied or size >= PART_BYTES):
            yield part
            part, size = [], 0
        part.append(piece)
        size = PART_BYTES if is_uncopied else size + len(piece)
    if part:
        yield part
