"""Answers of megabytes, sent in pieces as the client takes them: copied as a whole, one holds up the event loop."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
SENT_AT_ONCE = 4 * 2**20
"""Bytes: two milliseconds of copying. The client's time to read is counted anew for each (`ConnectionLimits`)."""


def respond(pieces: Sequence[bytes], media_type: str, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    """A response whose body these pieces are, at least one."""
    if len(pieces) == 1:
        return Response(pieces[0], media_type=media_type, headers=headers)
    return PiecesResponse(pieces, media_type, headers)


class PiecesResponse(Response):
    """Sends its body in parts of `SENT_AT_ONCE`, each once the client has read most of the one before."""

    def __init__(self, pieces: Sequence[bytes], media_type: str, headers: Mapping[str, str]) -> None:
        size = sum(map(len, pieces))
        super().__init__(media_type=media_type, headers={**headers, "content-length": str(size)})
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response."""
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        parts = _parts(self._pieces)
        for index, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": b"".join(part), "more_body": index < len(parts)})


def _parts(pieces: Sequence[bytes]) -> list[list[bytes]]:
    """The pieces in groups of at least `SENT_AT_ONCE`, but for the last."""
    parts: list[list[bytes]] = [[]]
    size = 0
    for piece in pieces:
        if size >= SENT_AT_ONCE:
            parts.append([])
            size = 0
        parts[-1].append(piece)
        size += len(piece)
    return parts
