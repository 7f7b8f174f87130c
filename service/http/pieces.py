"""Answers of megabytes, sent in pieces as the client takes them: copied as a whole, one holds up the event loop."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.wire import Piece

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
SENT_AT_ONCE = 2**20
"""Bytes: half a millisecond of copying, two where the memory is new."""
SENT_ALONE = 65_536
"""Bytes: arrays of at least so many are sent from where they are, which costs a write of its own."""
SENT_BLINDLY = 65_536
"""Bytes: as many as asyncio writes without asking whether the client reads."""


def respond(pieces: Sequence[Piece], media_type: str, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    """A response whose body these pieces are, at least one."""
    if (size := sum(map(len, pieces))) <= SENT_BLINDLY:
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
    """The pieces in groups of at least `SENT_AT_ONCE`, or up to a large array, which is a group alone."""
    part: list[Piece] = []
    size = 0
    for piece in pieces:
        is_alone = isinstance(piece, memoryview) and len(piece) >= SENT_ALONE
        if part and (is_alone or size >= SENT_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(piece)
        size = SENT_AT_ONCE if is_alone else size + len(piece)
    if part:
        yield part
