"""One child as its parent sees it: the process, the two lines to it, and what it last said."""

import asyncio
import itertools
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Literal, Self

from service.machine.handover import give_connection
from service.observability.snapshots import Snapshot
from service.processes.messages import Assignment, Link, Message

State = Literal["starting", "open", "ready", "leaving"]
"""`starting` until it takes connections, `open` until its model is loaded, `leaving` once another takes its place."""


class ChildProcess:
    """A process that serves.

    Attributes:
        index: which of the processes it is, from 0.
        state: how far it is.
        connections: where connections are handed on, and come back from.
        given: connections that were handed on to it.
        closed: how many of them have ended.
        silence: looks at it since it last said that its workers answer.
        metrics: the last that it gave; None before.
        was_ready: when it became ready, by the loop's clock; None before.
    """

    def __init__(self, index: int, process: asyncio.subprocess.Process, connections: socket.socket, link: Link) -> None:
        self.index = index
        self.state: State = "starting"
        self.connections = connections
        self.given = 0
        self.closed = 0
        self.silence = 0
        self.metrics: Snapshot | None = None
        self.was_ready: float | None = None
        self._process = process
        self._link = link
        self._settled = asyncio.Event()
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._ids = itertools.count(1)

    @classmethod
    async def start(cls, assignment: Assignment) -> Self:
        """Starts a process; it is `starting`.

        Raises:
            OSError: the system gives none, or no descriptors.
        """
        ours, theirs = socket.socketpair()
        control, their_control = socket.socketpair()
        with theirs, their_control:
            descriptors = (theirs.fileno(), their_control.fileno())
            command = (sys.executable, "-m", "service.processes.child", *map(str, descriptors))
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=descriptors
            )
        ours.setblocking(False)
        control.sendall(assignment.line())
        return cls(assignment.index, process, ours, await Link.open(control))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def load(self) -> int:
        """Connections that it has."""
        return self.given - self.closed

    @property
    def takes_connections(self) -> bool:
        """Whether connections may be handed on to it."""
        return self.state in ("open", "ready")

    def give(self, connection: socket.socket) -> bool:
        """Hands a connection on; False where it takes none at present."""
        is_given = give_connection(self.connections, connection.fileno())
        self.given += is_given
        return is_given

    def order(self, kind: Literal["drain", "leave", "end"]) -> None:
        """Tells it what to do."""
        if kind != "drain":
            self.state = "leaving"
        self._link.send(kind)

    def describe_group(self, *, is_ready: bool, is_alive: bool) -> None:
        """Tells it how all processes are."""
        self._link.send("group", is_ready=is_ready, is_alive=is_alive)

    def answer_scrape(self, number: int, metrics: Snapshot) -> None:
        """Gives it the metrics of all."""
        self._link.send("snapshot", id=number, metrics=metrics)

    async def update_metrics(self) -> None:
        """Asks for its metrics and waits until they are here, or it is gone."""
        number = next(self._ids)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._link.send("scrape", id=number)
        try:
            await answer
        finally:
            del self._asked[number]

    async def messages(self) -> AsyncIterator[Message]:
        """What it says and is not dealt with here, until it is gone."""
        async for message in self._link.messages():
            match message["kind"]:
                case "closed":
                    self.closed = message["total"]
                case "beat":
                    self.silence = 0 if message["is_alive"] else self.silence
                case "snapshot":
                    self.metrics = message["metrics"]
                    self._answer(message["id"])
                case "hello":
                    self.state = "open"
                    yield message
                case "ready":
                    self.state = "ready"
                    self.was_ready = asyncio.get_running_loop().time()
                    self._settled.set()
                    yield message
                case _:
                    yield message
        self._settled.set()
        for number in list(self._asked):
            self._answer(number)

    async def becomes_ready(self) -> bool:
        """Waits until it is ready; False where it ends before."""
        await self._settled.wait()
        return self.state == "ready"

    async def ended(self) -> int:
        """Waits for its end; returns the exit code, or minus the signal."""
        code = await self._process.wait()
        self.connections.close()
        await self._link.finish()
        return code

    def kill(self) -> None:
        """Ends it at once."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    def _answer(self, number: int) -> None:
        answer = self._asked.get(number)
        if answer is not None and not answer.done():
            answer.set_result(None)
