"""uvicorn's HTTP protocol with bounds on what a client may hold: header bytes, time to send, time to read.

uvicorn 0.54 has none of them, and httptools buffers a header of any size. No timer runs a request: the server looks at
every connection a few times within the shortest limit (`check`). A client that leaves ends its request. It knows
connections and tasks, not what requests mean.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.errors import HeadersTooLarge, MalformedRequest, RequestTimeout, ServiceError, TooManyConnections
from service.headers import SECURITY_HEADERS, retry_after_seconds

CONNECTION_KEY = "polyhead.connection"

_UPGRADE_HEADERS = (b"connection", b"upgrade", b"http2-settings")
LINGER_SECONDS = 2.0  # how long a refused client may go on sending before it is cut off


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionLimits:
    """What one client may hold.

    Attributes:
        max_connections: open connections of all clients.
        max_header_bytes: request line and headers of one request.
        receive_timeout: seconds from a request's first byte to its last, and from connecting to the first.
        send_timeout: seconds that an answer may stay unread, plus those that it takes at `min_send_rate`.
        min_send_rate: bytes a second.
    """

    max_connections: int
    max_header_bytes: int
    receive_timeout: float
    send_timeout: float
    min_send_rate: int

    @property
    def check_interval(self) -> float:
        """Seconds between two looks at every connection: close enough to the shortest limit."""
        return min(1.0, self.receive_timeout / 4, self.send_timeout / 4)


class Connection:
    """What a request may know of its client's connection.

    Attributes:
        running: the task that answers its current request, or None.
        is_lost: whether the client is gone.
        is_too_slow: whether the request's body did not arrive in time.
    """

    __slots__ = ("is_lost", "is_too_slow", "running")

    def __init__(self) -> None:
        self.running: asyncio.Task[Any] | None = None
        self.is_lost = False
        self.is_too_slow = False


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    Args:
        limits: what the client may hold.
        on_refused: told the code of each error that is answered here, before there is a request.
    """

    def __init__(self, *args: Any, limits: ConnectionLimits, on_refused: Callable[[str], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._on_refused = on_refused
        self._connection = Connection()
        self._awaited_since: float | None = None  # a request that has not arrived whole yet
        self._unread_until: float | None = None  # an answer that the client has to read
        self._closing_until: float | None = None
        self._is_refused = False
        self._has_begun = False
        self._in_head = False
        self._head_bytes = 0  # of headers that are complete
        self._raw_head_bytes = 0  # received while the head was incomplete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Takes the client in, or turns it away where there are too many."""
        super().connection_made(transport)
        self._awaited_since = self.loop.time()
        if len(self.connections) > self._limits.max_connections:
            self._refuse(TooManyConnections("too many connections; try again later", retry_after=1.0))

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what still runs for this client."""
        super().connection_lost(exc)
        self._connection.is_lost = True
        if self._connection.running is not None:
            self._connection.running.cancel()

    def data_received(self, data: bytes) -> None:
        """Parses what arrived; what a refused client goes on sending is dropped."""
        if self._is_refused or self.parser is None:
            return
        self._unset_keepalive_if_required()
        if self._in_head:
            self._raw_head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])
        except httptools.HttpParserError:
            too_large = self._head_bytes > self._limits.max_header_bytes
            self._refuse(self._too_large() if too_large else MalformedRequest("this is no valid HTTP/1.1 request"))
        else:
            if self._in_head and self._raw_head_bytes > self._limits.max_header_bytes:
                self._refuse(self._too_large())

    def on_message_begin(self) -> None:
        """Hands the connection to the request through its scope, and starts its clock."""
        super().on_message_begin()
        self.scope[CONNECTION_KEY] = self._connection  # type: ignore[literal-required]  # a key of our own
        self._awaited_since = self.loop.time()
        self._has_begun = self._in_head = True
        self._head_bytes = self._raw_head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Counts the request line."""
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Counts a header."""
        super().on_header(name, value)
        self._count_head(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        """The head is whole: from here on the body's limit holds."""
        self._in_head = False
        if not self.parser.should_upgrade():  # else it comes a second time, without the offer
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stops the request's clock."""
        if self.parser.should_upgrade():
            return
        self._awaited_since = None
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Starts the answer's clock: the client reads more slowly than it is written."""
        super().pause_writing()
        seconds = self._limits.send_timeout + self.transport.get_write_buffer_size() / self._limits.min_send_rate
        self._unread_until = self.loop.time() + seconds

    def resume_writing(self) -> None:
        """Stops the answer's clock."""
        super().resume_writing()
        self._unread_until = None

    def check(self, now: float) -> None:
        """Cuts the client off where its time is up."""
        if self.transport.is_closing() and self._closing_until is None:
            self._closing_until = now + self._limits.send_timeout
        if _is_past(self._closing_until, now) or _is_past(self._unread_until, now):
            self.transport.abort()
        elif self._awaited_since is None or self._is_refused:
            return
        elif self.flow.read_paused:  # not the client's doing: it may not send
            self._awaited_since = now
        elif now > self._awaited_since + self._limits.receive_timeout:
            self._awaited_since = None
            self._end_slow_request()

    def _end_slow_request(self) -> None:
        if not self._has_begun:
            self.transport.close()
        elif self._in_head:
            self._refuse(RequestTimeout("the request's headers did not arrive in time"))
        elif self.cycle.response_started or self._connection.running is None:
            self.transport.abort()
        else:
            self._connection.is_too_slow = True
            self._connection.running.cancel()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.max_header_bytes:
            raise ValueError("too many header bytes")  # stops the parser; `data_received` answers

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"the headers are larger than {self._limits.max_header_bytes} bytes")

    def _decline_upgrade(self, rest: bytes) -> None:
        """Reads the request again without its offer to upgrade, which RFC 9110 (7.8) lets a server ignore.

        httptools' parser stops for good behind the head of such a request, and Java's HTTP client makes the offer
        with every first one, body and all.
        """
        method = self.parser.get_method()
        self.parser = httptools.HttpRequestParser(self)
        if method == b"CONNECT":
            self._refuse(MalformedRequest("CONNECT: this is no proxy"))
            return
        kept = [header for header in self.headers if header[0] not in _UPGRADE_HEADERS]
        head = b"".join(b"%s: %s\r\n" % header for header in kept)
        self.data_received(b"%s %s HTTP/1.1\r\n%s\r\n%s" % (method, self.url, head, rest))

    def _refuse(self, error: ServiceError) -> None:
        """Answers without a request, then stops listening.

        The socket is closed for writing first and read on for a moment: closed with bytes unread, it would be reset,
        and the client lose the answer.
        """
        self._is_refused = True
        self._closing_until = self.loop.time() + LINGER_SECONDS
        self._on_refused(error.code)
        self.transport.write(_refusal(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()


def _refusal(error: ServiceError) -> bytes:
    body = orjson.dumps(error.body())
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        *SECURITY_HEADERS,
    ]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % retry_after_seconds(error)))
    head = b"".join(b"%s: %s\r\n" % header for header in headers)
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (error.status, error.reason.encode("ascii"), head, body)


def _is_past(limit: float | None, now: float) -> bool:
    return limit is not None and now > limit
