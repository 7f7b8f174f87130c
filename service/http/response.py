"""From a result to what is sent: the type and coding that a caller accepts, headers, failures, large bodies."""

import asyncio
import functools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.context import RequestContext
from service.errors import (
    HeadersTooLarge,
    MalformedRequest,
    MethodNotAllowed,
    NotAcceptable,
    NotReady,
    Overloaded,
    RequestTimeout,
    ServiceError,
    Unauthorized,
)
from service.wire import Piece

JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode("ascii")),
    (b"referrer-policy", b"no-referrer"),
)
GZIP_HEADERS = {"content-encoding": "gzip", "vary": "accept-encoding"}
NO_HEADERS: Mapping[str, str] = {}

MOST_RANGES = 128  # with their parameters, in `Accept` and `Accept-Encoding`; browsers send about ten
SMALLEST_BYTES = 64 * 1024  # below, an answer is a few round trips at most, and is not compressed
PART_BYTES = 2**20
"""A part of an answer is joined and written at once: half a millisecond of copying, two if the memory is new."""
ZERO_COPY_MIN_BYTES = 65_536
"""Arrays of at least this many bytes are sent from their own memory, without a copy, in a write of their own."""
UNBUFFERED_MAX_BYTES = 65_536
"""asyncio writes as many bytes without asking whether the client reads."""


def quality(accept: bytes, media_type: str) -> float:
    """A type's quality value in `Accept`, 0 to 1, from the narrowest range that covers it; 0 if none does.

    RFC 9110, section 12.5.1.

    Raises:
        NotAcceptable: more ranges than anybody needs.
    """
    kind = media_type.partition("/")[0]
    ranges = _ranges(accept)
    return next((ranges[name] for name in (media_type, f"{kind}/*", "*/*") if name in ranges), 0.0)


def prefers_safetensors(accept: bytes | None) -> bool:
    """Whether an answer is sent as safetensors: named, and wanted at least as much as JSON.

    A range such as `*/*` means JSON: a caller that can read safetensors names it.
    """
    if accept is None or SAFETENSORS.encode("ascii") not in accept.lower():
        return False
    wanted = _ranges(accept).get(SAFETENSORS, 0.0)
    return wanted > 0 and wanted >= quality(accept, JSON)


def accepts_gzip(accept_encoding: bytes | None) -> bool:
    """Whether a caller takes gzip, by `Accept-Encoding` (RFC 9110, section 12.5.3)."""
    try:
        wanted = _ranges(accept_encoding or b"")
    except NotAcceptable:
        return False
    return wanted.get("gzip", wanted.get("*", 0.0)) > 0


@functools.lru_cache(maxsize=64)  # a request asks several times, and clients send the same few
def _ranges(accept: bytes) -> Mapping[str, float]:
    if accept.count(b",") + accept.count(b";") >= MOST_RANGES:  # taking 32 KB of them apart holds the event loop
        raise NotAcceptable(f"Accept: more than {MOST_RANGES} ranges and parameters", param="Accept")
    found = {}
    for part in accept.decode("latin-1").lower().split(","):
        name, *parameters = (field.strip() for field in part.split(";"))
        found[name] = min((_weight(field) for field in parameters if field.startswith("q=")), default=1.0)
    return found


def _weight(parameter: str) -> float:
    """The value of `q=0.5`; anything but a number from 0 to 1 counts as 1."""
    try:
        weight = float(parameter[2:])
    except ValueError:
        return 1.0
    return weight if 0 <= weight <= 1 else 1.0


async def compress(pieces: Sequence[Piece], accept_encoding: bytes | None) -> tuple[Sequence[Piece], Mapping[str, str]]:
    """A body and its headers, compressed on a thread if it is large and the caller accepts gzip.

    For attention weights as JSON numbers only, which level 1 makes 2.2 to 2.4 times smaller. Level 6 takes six times as
    long for a tenth more; base64 is as small as compressed numbers and costs nothing.
    """
    if sum(map(len, pieces)) < SMALLEST_BYTES or not accepts_gzip(accept_encoding):
        return pieces, NO_HEADERS
    return await asyncio.to_thread(_compress, pieces), GZIP_HEADERS


def _compress(pieces: Sequence[Piece]) -> list[bytes]:
    compressor = zlib.compressobj(level=1, wbits=16 + zlib.MAX_WBITS)  # so it writes gzip's header
    return [*map(compressor.compress, pieces), compressor.flush()]


def failure_response(error: ServiceError, context: RequestContext) -> Response:
    """The response to a failure, in the route's error shape; notes its code for log and metrics."""
    context.error_code = error.code
    headers: dict[str, str] = {}
    match error:
        case RequestTimeout() | MalformedRequest() | HeadersTooLarge():
            headers = {"connection": "close"}  # what is left of the request is not waited for
        case Unauthorized():
            headers = {"www-authenticate": "Bearer"}
        case Overloaded() | NotReady():
            headers = {"retry-after": str(retry_after_seconds(error))}
        case MethodNotAllowed():
            headers = {"allow": ", ".join(error.allowed)}
    return Response(orjson.dumps(context.error_shape.body(error)), error.status, headers=headers, media_type=JSON)


def retry_after_seconds(error: ServiceError) -> int:
    """Whole seconds for `Retry-After`, at least 1."""
    return max(1, math.ceil(error.retry_after or 0))


def respond(pieces: Sequence[Piece], media_type: str, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    """A response whose body these pieces are, at least one."""
    if (size := sum(map(len, pieces))) <= UNBUFFERED_MAX_BYTES:
        return Response(b"".join(pieces), media_type=media_type, headers=headers)
    return LargeResponse(pieces, size, media_type, headers)


class LargeResponse(Response):
    """Sends its body in parts, each once the client has read most of the one before, and ends when all was read.

    Copied as a whole, an answer of megabytes would hold up the event loop.
    """

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
