"""What is known of a connection: its limits, its slot, its current request, and the rules for a request's head."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal

import orjson

from service.errors import MalformedRequest, ServiceError, UnsupportedCoding
from service.http.response import SECURITY_HEADERS, retry_after_seconds
from service.wire import OURS, ErrorShape, Piece

CONNECTION_KEY = "polyhead.connection"
ADMIN_CONNECTIONS = 64
"""To the admin port, for probes and whoever scrapes."""
REFUSED_CONNECTIONS = 64
"""Refused clients that may still read their answer. Beyond, the one that was refused first is cut off."""

Headers = list[tuple[bytes, bytes]]  # names in lower case
Slot = Literal["first port", "admin port"]

_TOKEN_BYTES = 5  # of a body with one English sentence, the JSON around it included; 4 to 6 in nine of ten
_SENTENCE_TOKENS = 32  # of a body that does not say its length
_LENGTH_DIGITS = 19  # of the largest 64-bit number
_UPGRADE_HEADERS = (b"upgrade", b"http2-settings")  # `Connection` lists them by these names, too
_REFUSAL_HEADERS = b"".join(b"%s: %s\r\n" % one for one in ((b"content-type", b"application/json"), *SECURITY_HEADERS))


class Connection:
    """What a request may know of its client's connection.

    Attributes:
        running: the task of its current request, until that is answered; a task that has ended does no harm.
        was_refused: whether the current request was answered 429.
        failure: why the current request cannot be answered otherwise: its body is broken or does not come.
        begin_answer: to be called before an answer's head is sent; whether the connection has to end behind it.
    """

    __slots__ = ("begin_answer", "failure", "is_lost", "running", "was_refused")

    def __init__(self, begin_answer: Callable[[], bool] = lambda: False) -> None:
        self.running: asyncio.Task[Any] | None = None
        self.is_lost = False
        self.was_refused = False
        self.failure: ServiceError | None = None
        self.begin_answer = begin_answer

    def fail(self, error: ServiceError) -> None:
        """Ends the current request with an error; one that has not started yet finds it when it does."""
        self.failure = error
        self.cancel()

    def cancel(self) -> None:
        """Ends the current request, if there is one."""
        if self.running is not None:
            self.running.cancel()


class AnswerWriter:
    """Writes an answer's head and body at once: the part of a transport that uvicorn's request cycle uses.

    uvicorn writes the head by itself, and uvloop hands every write to the system at once: two system calls here and two
    wake-ups at the client for a few kilobytes. So a head is held until its body comes. One object a connection, which
    `close_connection` ends behind an answer.
    """

    def __init__(self, transport: asyncio.Transport, close_connection: Callable[[], None]) -> None:
        self._transport = transport
        self.close_connection = close_connection
        self._head = b""
        self._holds_next = False

    def hold_head(self) -> None:
        """Says that the next write is an answer's head: it waits for the one after it, or for `flush`."""
        self._holds_next = True

    def write(self, data: Piece) -> None:
        """Writes a piece of an answer."""
        if self._head:
            self._transport.writelines((self._head, data))
            self._head = b""
        elif self._holds_next:
            self._head, self._holds_next = bytes(data), False
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Writes a head that no body follows."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        """Writes what is held, then closes."""
        self.flush()
        self.close_connection()

    def is_closing(self) -> bool:
        """Whether the transport is closed or about to be."""
        return self._transport.is_closing()


class ConnectionSlots:
    """Open connections of a process: each has a slot, or is refused.

    The admin port has slots of its own, so that probes and scrapes get through however many clients the first port has.

    Attributes:
        on_closed: called for each connection that is over.
        on_idle: given each connection some time after it was answered; None if all of them stay.
        on_full: called for each client of the first port that finds no slot.
    """

    def __init__(self, most: int, admin_port: int | None = None) -> None:
        self.on_closed: Callable[[], None] = lambda: None
        self.on_idle: Callable[[Any], None] | None = None
        self.on_full: Callable[[], None] = lambda: None
        self._admin_port = admin_port
        self._free: dict[Slot, int] = {"first port": most, "admin port": ADMIN_CONNECTIONS}
        self._refused: dict[asyncio.Transport, None] = {}  # in the order of their refusal

    def take(self, port: int | None, client: asyncio.Transport) -> Slot | None:
        """Takes a slot at a port, for `release` to free; None if there is none.

        A client without one is refused: its connection holds a descriptor until it has read its answer.
        """
        slot: Slot = "admin port" if port is not None and port == self._admin_port else "first port"
        if self._free[slot]:
            self._free[slot] -= 1
            return slot
        if slot == "first port":
            self.on_full()
        self._refused[client] = None
        if len(self._refused) > REFUSED_CONNECTIONS:
            first = next(iter(self._refused))
            del self._refused[first]
            first.abort()
        return None

    def release(self, slot: Slot | None, client: asyncio.Transport) -> None:
        """Frees what a client held that is gone: its slot, or its place among the refused."""
        if slot is None:
            self._refused.pop(client, None)
        else:
            self._free[slot] += 1
        self.on_closed()


def refusal_bytes(
    error: ServiceError, *, shape: ErrorShape = OURS, headers: Sequence[tuple[bytes, bytes]], closes: bool = True
) -> bytes:
    """A whole HTTP/1.1 answer for what never became a request; `headers` are added to a refusal's usual ones."""
    body = orjson.dumps(shape.body(error))
    lines = [b"HTTP/1.1 %d %s\r\n" % (error.status, HTTPStatus(error.status).phrase.encode("ascii")), _REFUSAL_HEADERS]
    lines += [b"%s: %s\r\n" % header for header in headers]
    if closes:
        lines.append(b"connection: close\r\n")
    if error.retry_after is not None:
        lines.append(b"retry-after: %d\r\n" % retry_after_seconds(error))
    return b"".join([*lines, b"content-length: %d\r\n\r\n" % len(body), body])


def check_head(version: str, headers: Headers) -> None:
    """Checks what the parser lets through.

    Raises:
        MalformedRequest: the version is neither 1.0 nor 1.1, the number of `Host` headers is not one, or the body's
            length has more digits than any.
        UnsupportedCoding: the body comes in another coding than in chunks.
    """
    if version not in ("1.0", "1.1"):
        raise MalformedRequest(f"HTTP/{version}: expected HTTP/1.1")
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"content-length" and len(value) > _LENGTH_DIGITS:
            raise MalformedRequest("Content-Length: more digits than any length has", param="Content-Length")
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise UnsupportedCoding("Transfer-Encoding: expected chunked", param="Transfer-Encoding")
    if hosts > 1 or (hosts == 0 and version == "1.1"):  # of two, a proxy on the way may have used the other one
        raise MalformedRequest(f"Host: expected one such header, got {hosts}", param="Host")


def expected_tokens(headers: Mapping[bytes, bytes]) -> int:
    """How many tokens a request has, about, by the length of its body."""
    length = headers.get(b"content-length")
    return _SENTENCE_TOKENS if length is None else max(1, int(length) // _TOKEN_BYTES)


def without_upgrade(headers: Headers) -> Iterator[tuple[bytes, bytes]]:
    """Headers without the offer to upgrade. `Connection` keeps its other tokens."""
    for name, value in headers:
        if name == b"connection":
            kept = [token for token in value.split(b",") if token.strip().lower() not in _UPGRADE_HEADERS]
            yield name, b",".join(kept)
        elif name not in _UPGRADE_HEADERS:
            yield name, value
