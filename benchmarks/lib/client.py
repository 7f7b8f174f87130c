"""An HTTP/1.1 client that costs next to nothing, for load that shares its cores with the server under test.

Requests are bytes made beforehand; of an answer only the head is looked at, the body is counted and dropped, or kept
when asked for. It knows keep-alive and Content-Length; a chunked answer is refused, not misread. No TLS, no pipelining.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from benchmarks.lib.command import CannotMeasure

DROPPED = 0  # status of a request whose connection ended before its answer


class ProtocolError(CannotMeasure):
    """The answer is not what this client can read: the message shows its head."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Reads `http://host:port`."""
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"{url!r}: expected http://host:port")
        return cls(parts.hostname, parts.port or 80)


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request as bytes, the work in it, and the status it should get."""

    data: bytes
    texts: int
    tokens: int
    expects: int = 200


@dataclass(frozen=True, slots=True)
class Response:
    """The part of an answer that load is judged by; `body` is empty unless asked for."""

    status: int
    retry_after: str | None
    body: bytes


LOST = Response(DROPPED, None, b"")


def post(
    path: str,
    body: Mapping[str, Any],
    *,
    texts: int = 0,
    tokens: int = 0,
    expects: int = 200,
    accept: str | None = None,
) -> Request:
    """A POST of JSON as bytes; `accept` is the media type wanted back, if it says one."""
    content = json.dumps(body, ensure_ascii=False).encode()
    wanted = "" if accept is None else f"Accept: {accept}\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: benchmark\r\nContent-Type: application/json\r\n{wanted}"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return Request(head.encode() + content, texts, tokens, expects)


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time; connects again by itself after the server closed it."""

    def __init__(self, address: Address, *, keep_body: bool = False) -> None:
        self._address = address
        self._keep_body = keep_body
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._head = b""
        self._body: list[bytes] = []
        self._missing = -1  # body bytes still to come; below 0 while the head is incomplete
        self._status = DROPPED
        self._retry_after: str | None = None
        self._ends = False  # the server said `Connection: close`
        self._closed = False

    async def context(self, data: bytes) -> Response:
        """Sends one request and waits for the end of its answer; status `DROPPED` where none came.

        Raises:
            ProtocolError: the answer has no Content-Length or is no HTTP.
        """
        loop = asyncio.get_running_loop()
        while self._transport is not None and self._transport.is_closing():
            await asyncio.sleep(0)  # connection_lost comes in one of the next turns
        if self._transport is None and not self._closed:
            try:
                await loop.create_connection(lambda: self, self._address.host, self._address.port)
            except OSError:
                return LOST
        if self._closed or self._transport is None:
            return LOST
        self._answer = loop.create_future()
        self._head, self._missing = b"", -1
        self._body.clear()
        self._transport.write(data)
        return await self._answer

    def close(self) -> None:
        """Closes for good: a request under way and every later one gets `DROPPED`."""
        self._closed = True
        self._disconnect()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Ends the request under way, if any."""
        self._transport = None
        self._finish(LOST)

    def data_received(self, data: bytes) -> None:
        """Counts the answer's bytes; ends the request with the last of them."""
        if self._answer is None:
            return
        if self._missing < 0:
            self._head += data
            head, separator, data = self._head.partition(b"\r\n\r\n")
            if not separator:
                return
            try:
                self._read_head(head.lower())
            except ProtocolError as error:
                self._fail(error)
                return
        self._missing -= len(data)
        if self._keep_body:
            self._body.append(data)
        if self._missing <= 0:
            self._finish(Response(self._status, self._retry_after, b"".join(self._body)))
            if self._ends:
                self._disconnect()

    def _read_head(self, head: bytes) -> None:
        length = _field(head, b"content-length")
        if length is None or not head.startswith(b"http/1.1 "):
            raise ProtocolError(f"expected HTTP/1.1 with a Content-Length, got {head[:200]!r}")
        self._status = int(head[9:12])
        self._missing = int(length)
        retry_after = _field(head, b"retry-after")
        self._retry_after = None if retry_after is None else retry_after.decode()
        self._ends = _field(head, b"connection") == b"close"

    def _disconnect(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, response: Response) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(response)

    def _fail(self, error: ProtocolError) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)
        self._disconnect()


def _field(head: bytes, name: bytes) -> bytes | None:
    """Value of a header field in a lower-cased head."""
    start = head.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else None].strip()
