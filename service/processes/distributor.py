"""Connections from the listeners to the children: each to the one that has the fewest.

The kernel's own way (`SO_REUSEPORT`) draws a child for each connection: of four clients that stay connected, all draw
the same of two children once in eight times. It also resets the connections that wait for a child that ends.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence

from service.processes.channel import take_connection
from service.processes.children import ChildProcess

ACCEPTED_AT_ONCE = 64  # connections; then others have their turn
PAUSE_SECONDS = 1.0  # after a failure to accept
RETRY_SECONDS = 0.01  # for children to take connections again, where none of them does

logger = logging.getLogger(__name__)


class Distributor:
    """Hands connections on. For one event loop.

    Args:
        listeners: sockets that listen.
    """

    def __init__(self, listeners: Sequence[socket.socket]) -> None:
        self._listeners = listeners
        self._children: list[ChildProcess] = []
        self._waiting: list[socket.socket] = []  # for a child to take them
        self._is_accepting = False
        for listener in listeners:
            listener.setblocking(False)

    def add(self, child: ChildProcess) -> None:
        """Begins to give a child connections, and to take back those that it gives up."""
        self._children.append(child)
        asyncio.get_running_loop().add_reader(child.connections, self._take_back, child)
        self._go_on()

    def remove(self, child: ChildProcess) -> None:
        """Forgets a child that is gone."""
        if child in self._children:
            self._children.remove(child)
            self._take_back(child)
            asyncio.get_running_loop().remove_reader(child.connections)

    def close(self) -> None:
        """Hands on what is there, and listens no more."""
        for listener in self._listeners:
            while self._accept(listener):
                pass
        self._stop()
        for listener in self._listeners:
            listener.close()

    def _go_on(self) -> None:
        """Hands on waiting connections, then accepts others; tries again in a moment if no child takes them."""
        while self._waiting and self._hand_on(self._waiting[0]):
            del self._waiting[0]
        loop = asyncio.get_running_loop()
        if self._waiting:
            self._stop()
            loop.call_later(RETRY_SECONDS, self._go_on)
        elif not self._is_accepting and any(listener.fileno() >= 0 for listener in self._listeners):
            self._is_accepting = True
            for listener in self._listeners:
                loop.add_reader(listener, self._accept, listener)

    def _stop(self) -> None:
        """Leaves connections in the kernel's queue."""
        self._is_accepting = False
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)

    def _accept(self, listener: socket.socket) -> bool:
        """Hands on what has come to a listener; whether there may be more."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return False
            except OSError:  # no descriptor is left, which would be so again at once
                logger.exception("a connection could not be accepted")
                self._stop()
                asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._go_on)
                return False
            self._keep_or_hand_on(connection)
            if self._waiting:
                return False
        return True

    def _take_back(self, child: ChildProcess) -> None:
        """Hands connections that a child gives up on to others."""
        while True:
            try:
                connection = take_connection(child.connections)
            except OSError:  # none is there, or it is gone
                return
            if connection is None:
                asyncio.get_running_loop().remove_reader(child.connections)
                return
            self._keep_or_hand_on(connection)

    def _keep_or_hand_on(self, connection: socket.socket) -> None:
        if not self._hand_on(connection):
            self._waiting.append(connection)
            self._go_on()

    def _hand_on(self, connection: socket.socket) -> bool:
        """Gives a connection to the child with the fewest, one that answers and is ready before all others."""
        takers = [child for child in self._children if child.takes_connections]
        takers.sort(key=lambda child: (child.is_late, child.state != "ready", child.load, child.given))
        if any(child.give(connection) for child in takers):
            connection.close()
            return True
        return False
