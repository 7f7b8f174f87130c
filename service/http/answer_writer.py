"""An answer's head and body in one write.

uvicorn writes the head by itself, and uvloop hands every write to the system at once: two system calls here and two
wake-ups at the client for a few kilobytes.
"""

import asyncio
from collections.abc import Callable

from service.wire import Piece


class AnswerWriter:
    """The part of a transport that uvicorn's request cycle uses. One a connection; holds a head until its body comes.

    Attributes:
        close_connection: ends the connection behind an answer.

    Args:
        transport: of the connection.
        close_connection: the attribute.
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
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif self._holds_next:
            self._head, self._holds_next = bytes(data), False
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Writes a head that no body follows."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        """Writes what is held, then closes."""
        self.flush()
        self.close_connection()

    def is_closing(self) -> bool:
        """Whether the transport is closed or about to be."""
        return self._transport.is_closing()
