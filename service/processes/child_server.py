"""The server of a child: its connections come from the parent, which decides when it ends."""

import asyncio
import logging
import signal
import socket
from typing import Any

import uvicorn

from service.http.connection_limit import ConnectionSlots
from service.lifecycle import Load, Server
from service.machine.handover import give_connection, take_connection
from service.processes.membership import Membership
from service.services import Services

BEAT_INTERVAL = 1.0  # seconds
LEAVE_INTERVAL = 0.02  # seconds between two looks at the connections that are left
TAKEN_AT_ONCE = 32  # connections; then others have their turn

logger = logging.getLogger(__name__)


class ChildServer(Server):
    """One of several processes behind one port.

    Args:
        config: uvicorn's.
        services: of the app.
        load: makes the runner, on a thread.
        address: where clients reach the service, for the log.
        check_interval: seconds between two looks at every connection.
        slots: of the connections.
        connections: where they come from, and idle ones go back to.
        membership: the line to the parent.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        services: Services,
        load: Load,
        address: str,
        check_interval: float,
        *,
        slots: ConnectionSlots,
        connections: socket.socket,
        membership: Membership,
    ) -> None:
        super().__init__(config, services, load, address, check_interval)
        self._registry = services.metrics.registry
        self._is_alive = services.readiness.is_alive
        self._shutdown_timeout = services.settings.shutdown_timeout
        self._slots = slots
        self._channel = connections
        self._membership = membership
        self._beginning: set[asyncio.Task[None]] = set()
        self._is_leaving = False
        slots.on_closed = membership.count_closed

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes connections from the parent, then starts to load."""
        await self._membership.open()
        await super().startup(sockets)
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel, self._take_connections)
        self.in_background(self._membership.follow(self._registry, self._obey))
        self.in_background(self._beat())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes what the parent has handed on, finishes it, and leaves the parent the last metrics."""
        while self._take_connections():
            await asyncio.sleep(0)
        if self._beginning:
            await asyncio.wait(self._beginning)
        asyncio.get_running_loop().remove_reader(self._channel)
        await super().shutdown(sockets)
        await self._membership.finish(self._registry)

    def handle_signals(self) -> None:
        """SIGTERM asks the parent for a replacement. Ctrl-C comes to all processes, and is the parent's to follow."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._membership.say, "leave")
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)

    def on_ready(self) -> None:
        """Tells the parent, which gives a process that is ready the connections first."""
        self._membership.say("ready")

    def _obey(self, order: str) -> None:
        match order:
            case "drain":
                self.readiness.drain()
            case "end":
                self.readiness.drain()
                self.should_exit = True
            case "leave" if not self._is_leaving:
                self._is_leaving = True
                self.in_background(self._leave())

    async def _beat(self) -> None:
        while True:
            self._membership.say("beat", is_alive=self._is_alive())
            await asyncio.sleep(BEAT_INTERVAL)

    def _take_connections(self) -> bool:
        """Begins with the connections that the parent has handed on; whether there may be more."""
        for _ in range(TAKEN_AT_ONCE):
            try:
                connection = take_connection(self._channel)
            except BlockingIOError:
                return False
            except OSError:
                logger.exception("a connection could not be taken")
                self._membership.count_closed()
                continue
            if connection is None:
                asyncio.get_running_loop().remove_reader(self._channel)
                return False
            task = asyncio.get_running_loop().create_task(self._begin(connection))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
        return True

    async def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self.make_protocol, connection)
        except OSError:  # the client is gone already
            connection.close()
            self._membership.count_closed()

    async def _leave(self) -> None:
        """Hands connections back as they become idle, then ends; those that never do end as at any end."""
        logger.info("leaving: %d connections go to other processes", len(self.connections))
        loop = asyncio.get_running_loop()
        end = loop.time() + self._shutdown_timeout
        self._slots.on_idle = self._hand_back
        self._take_connections()
        while (self.connections or self._beginning) and loop.time() < end:
            for connection in self.connections:
                self._hand_back(connection)
            await asyncio.sleep(LEAVE_INTERVAL)
        self.readiness.drain()
        self.should_exit = True

    def _hand_back(self, connection: Any) -> None:
        """Gives an idle connection to the parent, which has it too then: that it is closed here does not end it."""
        if not connection.is_idle:
            return
        if give_connection(self._channel, connection.transport.get_extra_info("socket").fileno()):
            connection.transport.abort()
