"""The parts of uvicorn 0.54 that it does not promise to keep: all of those in use stand here, each with its reason.

`tests/service/http/test_uvicorn_parts.py` fails when uvicorn changes one of them.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.http.answer_writer import AnswerWriter


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
