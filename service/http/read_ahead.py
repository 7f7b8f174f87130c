"""How far a connection is read while requests that came before are still being answered.

uvicorn stops reading behind a request that has to wait its turn, and reads on with every answer: a client that sends
faster than it is answered would fill the memory with requests, and one that leaves would go unnoticed. So it is read on
while little waits, and only then.
"""

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

MOST_AHEAD = 128
"""Requests that may wait behind the one that is being answered; one read may hold ten thousand."""
FEW_AHEAD = 8
"""Requests that may wait while more are read."""

Waiting = deque[tuple[RequestResponseCycle, Any]]


class ReadAhead(FlowControl):
    """Reads on only while few requests wait, and are few bytes. One a connection.

    Args:
        transport: of the connection.
        waiting: its requests that wait for their turn.
    """

    def __init__(self, transport: asyncio.Transport, waiting: Waiting) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Reads on, unless enough was read; asked again when the next request has its turn."""
        if len(self._waiting) <= FEW_AHEAD and sum(_size(cycle) for cycle, _ in self._waiting) <= HIGH_WATER_LIMIT:
            super().resume_reading()

    def drop(self) -> None:
        """Forgets the requests that wait: nobody answers them any more."""
        for cycle, _ in self._waiting:
            cycle.body.clear()  # the connection knows the last one, which knows it: both stay until some collection
        self._waiting.clear()


def _size(cycle: RequestResponseCycle) -> int:
    """Bytes of a request's head and body, about."""
    scope = cycle.scope
    head = len(scope["raw_path"]) + len(scope["query_string"])
    return head + sum(len(name) + len(value) for name, value in scope["headers"]) + len(cycle.body)
