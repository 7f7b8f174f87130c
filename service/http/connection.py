"""What a connection and its requests know of each other, and what one client may hold."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from service.error_shapes import OURS, ErrorShape
from service.errors import ServiceError
from service.http.headers import SECURITY_HEADERS, retry_after_seconds

CONNECTION_KEY = "polyhead.connection"
_HEAD = b"".join(b"%s: %s\r\n" % header for header in ((b"content-type", b"application/json"), *SECURITY_HEADERS))


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionLimits:
    """What one client may hold.

    Attributes:
        max_header_bytes: request line and headers of one request.
        receive_timeout: seconds from a request's first byte to its last, and from connecting to the first.
        send_timeout: seconds that an answer may stay unread, plus those that each piece takes at `min_send_rate`.
        min_send_rate: bytes a second.
    """

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
        running: the task of its current request, until that is answered; a task that has ended does no harm.
        is_lost: whether the client is gone.
        was_refused: whether the current request was answered 429.
        failure: why the current request cannot be answered otherwise: its body is broken or does not come.
        begin_answer: to be called before an answer's head is sent.
    """

    __slots__ = ("begin_answer", "failure", "is_lost", "running", "was_refused")

    def __init__(self, begin_answer: Callable[[], None] = lambda: None) -> None:
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
        """Ends the current request, where there is one."""
        if self.running is not None:
            self.running.cancel()


def refusal_bytes(
    error: ServiceError,
    *,
    shape: ErrorShape = OURS,
    headers: Sequence[tuple[bytes, bytes]] = (),
    closes: bool = True,
) -> bytes:
    """A whole HTTP/1.1 answer for what never became a request.

    Args:
        error: what is answered.
        shape: how the body is written.
        headers: beside those that every refusal has.
        closes: whether the connection ends behind it.
    """
    body = orjson.dumps(shape.body(error))
    lines = [b"HTTP/1.1 %d %s\r\n" % (error.status, error.reason.encode("ascii")), _HEAD]
    lines += [b"%s: %s\r\n" % header for header in headers]
    if closes:
        lines.append(b"connection: close\r\n")
    if error.retry_after is not None:
        lines.append(b"retry-after: %d\r\n" % retry_after_seconds(error))
    return b"".join([*lines, b"content-length: %d\r\n\r\n" % len(body), body])
