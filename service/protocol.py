"""uvicorn's HTTP protocol, with an eye on the connection: a client that leaves ends its request.

It knows connections and tasks, not requests.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONNECTION_KEY = "polyhead.connection"


class Connection:
    """One client's connection.

    Attributes:
        running: the task that answers its current request, or None.
        is_lost: whether the client is gone.
    """

    __slots__ = ("is_lost", "running")

    def __init__(self) -> None:
        self.running: asyncio.Task[Any] | None = None
        self.is_lost = False


class WatchedProtocol(HttpToolsProtocol):
    """Cancels the task of a request whose client left, so that its texts leave the queue."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connection = Connection()

    def on_message_begin(self) -> None:
        """Hands the connection to the request through its scope."""
        super().on_message_begin()
        self.scope[CONNECTION_KEY] = self._connection  # type: ignore[literal-required]  # a key of our own

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what still runs for this client."""
        super().connection_lost(exc)
        self._connection.is_lost = True
        if self._connection.running is not None:
            self._connection.running.cancel()
