"""The parts of uvicorn 0.54 that it does not promise to keep: all of those in use stand here, each with its reason.

`tests/service/http/test_uvicorn_parts.py` fails when uvicorn changes one of them.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.wire import Piece


class AnswerWriter:
    """Writes an answer's head and body at once: the part of a transport that uvicorn's request cycle uses.

    uvicorn writes the head by itself, and uvloop hands every write to the system at once: two system calls here and two
    wake-ups at the client for a few kilobytes. So a head is held until its body comes. One object a connection.

    Attributes:
        close_connection: ends the connection behind an answer.
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


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with names for the parts that it keeps to itself. One object a connection.

    Attributes:
        answering: the request that is being answered, or was answered last. uvicorn's `cycle` is the one that came in
            last, which may still wait for its turn.
    """

    answering: RequestResponseCycle | None = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Uvicorn calls this when it is a request's turn, and offers no public hook for that."""
        self.answering = cycle
        self.on_turn()
        super()._start_asgi_task(cycle, app)

    def on_turn(self) -> None:
        """A request begins to be answered."""

    @property
    def is_answering(self) -> bool:
        """Whether an answer is not written yet."""
        return self.answering is not None and not self.answering.response_complete

    @property
    def awaits_continue(self) -> bool:
        """Whether the client that is being answered was not yet told to send its body, and waits for that."""
        return self.answering is not None and bool(self.answering.waiting_for_100_continue)

    @property
    def requests_waiting(self) -> int:
        """Requests that came in before earlier ones were answered."""
        return len(self.pipeline)

    def drop_waiting(self) -> None:
        """Answers none of them."""
        self.pipeline.clear()

    def stop_idle_timer(self) -> None:
        """Ends the wait for the next request. uvicorn's `data_received` does so, and ours replaces that."""
        self._unset_keepalive_if_required()

    def start_idle_timer(self) -> None:
        """Begins the wait for the next request behind one that uvicorn did not see."""
        self.stop_idle_timer()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    @property
    def has_idle_timer(self) -> bool:
        """Whether the next request is waited for."""
        return self.timeout_keep_alive_task is not None

    def on_body(self, body: bytes) -> None:
        """Takes a piece of the body; uvicorn drops one whose request is answered, but not of one that it never saw."""
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends a request, likewise."""
        if self.cycle is not None:
            super().on_message_complete()

    def write_through(self, writer: AnswerWriter) -> None:
        """Has the answer to the last request written by ours. uvicorn uses a writer's three methods and no other."""
        self.cycle.transport = writer  # type: ignore[assignment]  # not a whole transport

    def mark_disconnected(self) -> None:
        """Has nothing more sent to the request that is being answered; uvicorn marks the one that came in last."""
        if self.answering is not None and not self.answering.response_complete:
            self.answering.disconnected = True

    def release_body(self) -> None:
        """Lets go of a body that no route asked for; uvicorn keeps it until the next request."""
        if self.answering is not None:
            self.answering.body.clear()


class HttpServer(uvicorn.Server):
    """uvicorn's server without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Installs nothing: uvicorn would end the process with the signal's own code, and we end it with 0."""
        yield

    def make_protocol(self) -> asyncio.Protocol:
        """The protocol of a connection that came by another way than a listener. For a server that has started."""
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    @property
    def connections(self) -> list[Any]:
        """The protocol of every open connection."""
        return list(self.server_state.connections)

    @property
    def requests(self) -> set[asyncio.Task[None]]:
        """The task of every request that is being answered."""
        return self.server_state.tasks
