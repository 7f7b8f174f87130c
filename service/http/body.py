"""Request bodies: bounded while they are read, then checked for how much they hold.

Two megabytes of text are parsed in two milliseconds, two megabytes of `[1],[1],...` in 300, and meanwhile the event
loop is held. So the number of values is bounded before a body is parsed. The checks know no fields.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence

from starlette.types import Receive

from service.context import Share
from service.errors import ClientLeft, NotAcceptable, TooLarge, UnsupportedMedia
from service.http.response import JSON, quality

CHECKED_BYTES = 16_384  # a smaller body cannot hold enough values to matter
SPARE = 4096  # values that a request may have besides its inputs: names, options, head masks, spans
PER_TEXT = 3  # lists and objects, or names, of one input: a pair of two lists, an object with a list of an object
WINDOW_BYTES = 32_768  # read before the event loop is free again: a few milliseconds, whatever the bytes are
_STRING = re.compile(rb'"[^"]*+"?')  # one that has no end in its window reaches to the window's


def check_media(headers: Mapping[bytes, bytes]) -> None:
    """Checks that the body is JSON.

    Raises:
        UnsupportedMedia: the body is of another type or compressed.
    """
    content_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if content_type != JSON.encode("ascii"):
        raise UnsupportedMedia.at("Content-Type", "expected application/json")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedMedia.at("Content-Encoding", "the body must not be compressed")


def check_accept(headers: Mapping[bytes, bytes], answers: Sequence[str]) -> None:
    """Checks that the caller accepts one of `answers`.

    Raises:
        NotAcceptable: the caller accepts none of them.
    """
    accept = headers.get(b"accept")
    if not accept or accept == b"*/*":
        return
    if not any(quality(accept, answer) for answer in answers):
        raise NotAcceptable(f"Accept: this route answers {' and '.join(answers)} only", param="Accept")


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limit: int, share: Share) -> bytes:
    """Reads a body; holds at most one piece more than `limit` bytes of it.

    Raises:
        TooLarge: by its Content-Length before anything is read, or as soon as more than the limit arrived.
        HeldTooMuch: all requests together hold as much as they may.
        ClientLeft: the connection closed before the end.
    """
    if int(headers.get(b"content-length", b"0")) > limit:
        raise _body_too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeft
        part: bytes = message.get("body", b"")
        size += len(part)
        share.take(len(part))
        if size > limit:
            raise _body_too_large(limit)
        if not message.get("more_body", False):
            return b"".join([*parts, part]) if parts else part
        parts.append(part)


def _body_too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes; send fewer inputs a request")


async def check_structure(raw: bytes, *, max_texts: int, max_tokens: int) -> None:
    """Refuses a body with more values than the largest request has, before it is parsed.

    Whatever the limits of texts, each of which may be a list, and of tokens allow passes, in the form of any API.

    Raises:
        TooLarge: more values, lists and objects, or names than that.
    """
    if len(raw) <= CHECKED_BYTES:
        return
    structure = PER_TEXT * max_texts + SPARE
    limits = (max_tokens + structure, structure, structure)
    if _exceeded(_count(raw), limits) is None:  # counts what is inside texts too, in most bodies little
        return
    counts, is_inside, escape = (0, 0, 0), False, b""
    for start in range(0, len(raw), WINDOW_BYTES):
        await asyncio.sleep(0)
        part = (escape + raw[start : start + WINDOW_BYTES]).replace(b"\\\\", b"")
        escape = part[-1:] if part.endswith(b"\\") else b""  # of the first byte of the next window
        part = part.removesuffix(escape).replace(b'\\"', b"")  # the quotes that are left begin and end strings
        if is_inside:
            part = b'"' + part
        is_inside = part.count(b'"') % 2 == 1
        values, lists, names = _count(_STRING.sub(b"", part))
        counts = (counts[0] + values, counts[1] + lists, counts[2] + names)
        if what := _exceeded(counts, limits):
            raise TooLarge(f"the body holds {what}; send fewer inputs a request")


def _count(raw: bytes) -> tuple[int, int, int]:
    """Values, lists and objects, and names, about."""
    return raw.count(b","), raw.count(b"[") + raw.count(b"{"), raw.count(b":")


def _exceeded(counts: tuple[int, int, int], limits: tuple[int, int, int]) -> str | None:
    """What there is too much of, and how much of it is taken; None if all is within its limit."""
    table = zip(counts, limits, ("values", "lists and objects", "names"), strict=True)
    return next((f"more than {limit} {what}" for count, limit, what in table if count > limit), None)
