"""A child: `python -m service.processes.child CONNECTIONS CONTROL`, the descriptors of its two lines to the parent.

Only the parent starts it, and decides when it ends. What it is comes as the first message over the second line.
"""

import asyncio
import contextlib
import logging
import os
import pkgutil
import signal
import socket
import sys
from typing import Any

from service.errors import NotReady
from service.listeners import FAILED, StartFailure
from service.machine import bound_heap
from service.observability import logs
from service.observability.snapshots import Snapshot, take_snapshot
from service.processes.channel import BEAT_INTERVAL, Assignment, Link, give_connection, take_connection
from service.server import Load, Server, load_runner
from service.services import ProcessGroup, Readiness
from service.settings import Settings

LEAVE_INTERVAL = 0.02  # seconds between two looks at the connections that are left
SCRAPE_SECONDS = 5.0
TAKEN_AT_ONCE = 32  # connections; then others have their turn

logger = logging.getLogger(__name__)


def main(connections: socket.socket, control: socket.socket) -> int:
    """Serves until the parent says otherwise; returns the exit code."""
    try:
        assignment = Assignment.read(control)
    except EOFError:
        return FAILED
    if assignment.cores:
        os.sched_setaffinity(0, assignment.cores)
    settings = Settings(**assignment.settings)
    bound_heap(os.environ)
    log = logs.configure(settings.log_level, fields={"process": assignment.index})
    try:
        with log.in_background():
            load = load_runner if assignment.load is None else pkgutil.resolve_name(assignment.load)
            return ChildServer(settings, load, assignment.address, connections, control).run_to_end([])
    except StartFailure as error:
        sys.stderr.write(f"{assignment.program}: {error}\n")
        return FAILED


class ChildServer(Server, ProcessGroup):
    """One of several processes: connections come over one line from the parent, messages over `control`."""

    _link: Link

    def __init__(
        self, settings: Settings, load: Load, address: str, connections: socket.socket, control: socket.socket
    ) -> None:
        super().__init__(settings, Readiness(self), load, address)
        self._registry = self._services.metrics.registry
        self._channel = connections
        self._control = control
        self._beginning: set[asyncio.Task[None]] = set()
        self._closed = 0  # connections that have ended
        self._is_group_ready = False
        self._is_group_alive = True
        self.slots.on_closed = self._count_closed

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes connections from the parent, then starts to load."""
        self._link = await Link.open(self._control)
        await super().startup(sockets)
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel, self._take_connections)
        self._link.send("hello")
        self.in_background(self._follow())
        self.in_background(self._beat())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes what the parent has handed on, finishes it, and leaves the parent the last metrics."""
        while self._take_connections():
            await asyncio.sleep(0)
        if self._beginning:
            await asyncio.wait(self._beginning)
        asyncio.get_running_loop().remove_reader(self._channel)
        await super().shutdown(sockets)
        await self._send_snapshot()
        await self._link.finish()

    def handle_signals(self) -> None:
        """SIGTERM asks the parent for a replacement."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._link.send, "leave")

    def on_ready(self) -> None:
        """Tells the parent, which hands connections to ready processes first."""
        self._link.send("ready")

    def check_ready(self) -> None:
        """Raises `NotReady` unless the parent has said that every process takes traffic."""
        if not self._is_group_ready:
            raise NotReady("another process is not ready")

    def check_alive(self) -> None:
        """Raises `NotReady` if the parent has said that a process does not answer."""
        if not self._is_group_alive:
            raise NotReady("another process does not answer")

    async def snapshot(self) -> Snapshot:
        """The metrics of all processes together.

        Raises:
            NotReady: the parent does not answer.
        """
        with contextlib.suppress(TimeoutError):
            if (found := await asyncio.wait_for(self._link.ask_metrics(), SCRAPE_SECONDS)) is not None:
                return found
        raise NotReady("the parent process does not answer")

    async def _follow(self) -> None:
        """Does what the parent says; that it is gone means `end`."""
        async for message in self._link.messages():
            match message["kind"]:
                case "group":
                    self._is_group_ready, self._is_group_alive = message["is_ready"], message["is_alive"]
                case "scrape":
                    await self._send_snapshot()
                case "drain":
                    self.readiness.drain()
                case "end":
                    self._end()
                case "leave":
                    self.in_background(self._leave())
        self._end()

    def _end(self) -> None:
        self.readiness.drain()
        self.should_exit = True

    async def _send_snapshot(self) -> None:
        self._link.send("snapshot", metrics=await asyncio.to_thread(take_snapshot, self._registry))

    def _count_closed(self) -> None:
        """Says that a connection is over, for the parent to give this process others."""
        self._closed += 1
        self._link.send("closed", total=self._closed)

    async def _beat(self) -> None:
        while True:
            self._link.send("beat", is_alive=self.readiness.is_alive())
            await asyncio.sleep(BEAT_INTERVAL)

    def _take_connections(self) -> bool:
        """Begins with the connections that the parent has handed on; whether there may be more."""
        for _ in range(TAKEN_AT_ONCE):
            try:
                taken = take_connection(self._channel)
            except BlockingIOError:
                return False
            except OSError:
                logger.exception("a connection could not be taken")
                self._count_closed()
                continue
            if taken is None:
                asyncio.get_running_loop().remove_reader(self._channel)
                return False
            task = asyncio.get_running_loop().create_task(self._begin(*taken))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
        return True

    async def _begin(self, connection: socket.socket, was_answered: bool) -> None:
        connection.setblocking(False)

        def make_protocol() -> asyncio.Protocol:  # as uvicorn's server does for a listener's connections
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                was_answered=was_answered,
            )

        try:
            await asyncio.get_running_loop().connect_accepted_socket(make_protocol, connection)
        except OSError:  # the client is gone already
            connection.close()
            self._count_closed()

    async def _leave(self) -> None:
        """Hands connections back as they become idle, then ends; those that never do end as at any end."""
        logger.info("leaving: %d connections go to other processes", len(self.connections))
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.shutdown_timeout
        self.slots.on_idle = self._hand_back
        self._take_connections()
        while (self.connections or self._beginning) and loop.time() < end:
            for connection in self.connections:
                self._hand_back(connection)
            await asyncio.sleep(LEAVE_INTERVAL)
        self._end()

    def _hand_back(self, connection: Any) -> None:
        """Gives an idle connection to the parent, which has it too then: that it is closed here does not end it."""
        if not connection.is_idle:
            return
        descriptor = connection.transport.get_extra_info("socket").fileno()
        if give_connection(self._channel, descriptor, connection.was_answered):
            connection.transport.abort()


if __name__ == "__main__":
    sys.exit(main(*(socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:])))
