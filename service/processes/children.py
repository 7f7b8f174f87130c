"""The children as their parent sees them: what each said last, their metrics, and the connections they get."""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import asdict
from functools import partial
from typing import Literal, Self

from prometheus_client import Counter, Gauge

from service.machine import module_command
from service.observability import metrics as names
from service.observability.snapshots import Snapshot, merge_snapshots, take_snapshot, totals_of
from service.processes.channel import Assignment, Link, Message, give_connection, line_of, take_connection

LATE_LOOKS = 3  # after which new connections go to others: 0.75 s, beside a beat of 0.25 s
SILENT_LOOKS = 20  # after which a child counts as not answering: 5 s
HUNG_LOOKS = 80  # after which it is killed: 20 s; Kubernetes would restart everything after 30
PARENT_SIGNALS = (signal.SIGINT, signal.SIGHUP)
"""A terminal sends them to all processes. No child gets them: one that still imports would die."""
ANSWER_SECONDS = 1.0  # that a child has; then what it said last stands for it

State = Literal["starting", "open", "ready", "leaving"]
"""`starting` until it takes connections, `open` until its model is loaded, `leaving` once another takes its place."""

logger = logging.getLogger(__name__)


class ChildProcess:
    """A process that serves.

    Attributes:
        index: its place, from 0.
        connections: where connections are handed on, and come back from.
        given: how many were handed on to it; `closed` of them have ended.
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
        self.link = link
        self._settled = asyncio.Event()

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
            command = (*module_command(f"{__package__}.child"), *map(str, descriptors))
            unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)  # which it inherits
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=descriptors
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        ours.setblocking(False)
        control.sendall(line_of("start", **asdict(assignment)))
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

    def give(self, connection: socket.socket, was_answered: bool) -> bool:
        """Hands a connection on; False where it takes none at present."""
        is_given = give_connection(self.connections, connection.fileno(), was_answered)
        self.given += is_given
        return is_given

    def tell(self, kind: Literal["group", "snapshot", "drain", "leave", "end"], **fields: object) -> None:
        """Sends it a message; after `leave` and `end` it gets no more connections."""
        if kind in ("leave", "end"):
            self.state = "leaving"
        self.link.send(kind, **fields)

    async def messages(self) -> AsyncIterator[Message]:
        """What it says and is not dealt with here, until it is gone."""
        async for message in self.link.messages():
            match message["kind"]:
                case "closed":
                    self.closed = message["total"]
                case "beat":
                    self.silence = 0 if message["is_alive"] else self.silence
                case "snapshot":
                    self.metrics = message["metrics"]
                case "hello" | "ready" as kind:
                    if self.state != "leaving":  # it said so before it knew, or loaded to the end
                        self.state = "open" if kind == "hello" else "ready"
                    if kind == "ready":
                        self.was_ready = asyncio.get_running_loop().time()
                        self._settled.set()
                    yield message
                case _:
                    yield message
        self._settled.set()

    async def becomes_ready(self) -> bool:
        """Waits until it is ready; False where it ends before."""
        await self._settled.wait()
        return self.state == "ready"

    async def ended(self) -> int:
        """Waits for its end; returns the exit code, or minus the signal."""
        code = await self._process.wait()
        self.connections.close()
        await self.link.finish()
        return code

    def kill(self) -> None:
        """Ends it at once."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)


class Children:
    """Every child that has not ended, those too that leave or are not ready yet.

    Attributes:
        serving: by place, those that are to serve; a place misses while its process is dead.
    """

    def __init__(self, places: int) -> None:
        self.all: set[ChildProcess] = set()
        self.serving: dict[int, ChildProcess] = {}
        self.is_ending = False
        self._places = places

    def remove(self, child: ChildProcess) -> bool:
        """Forgets a child that has ended; whether it was to serve."""
        self.all.discard(child)
        is_serving = self.serving.get(child.index) is child
        if is_serving:
            del self.serving[child.index]
        self.tell()
        return is_serving

    def is_ready(self) -> bool:
        """Whether every place has a process that takes traffic."""
        is_complete = len(self.serving) == self._places
        are_ready = is_complete and all(child.state == "ready" for child in self.serving.values())
        return are_ready and self.is_alive() and not self.is_ending

    def is_alive(self) -> bool:
        """Whether each of them answers."""
        return all(child.silence < SILENT_LOOKS for child in self.all)

    def tell(self) -> None:
        """Lets each know how all are, for the probes that it answers."""
        is_ready, is_alive = self.is_ready(), self.is_alive()
        for child in self.all:
            child.tell("group", is_ready=is_ready, is_alive=is_alive)

    def look(self) -> None:
        """Kills children that no longer answer. Looks are counted, not seconds: the whole machine may stand still."""
        for child in self.all:
            child.silence += child.takes_connections
            if child.silence == HUNG_LOOKS:
                logger.error("process %d does not answer: it is killed", child.index)
                child.kill()
        self.tell()

    def kill(self) -> None:
        """Ends all of them at once."""
        for child in self.all:
            child.kill()


class ParentMetrics:
    """The metrics of all: the parent's own, its children's, and the last counts known of children that ended."""

    def __init__(self, processes: int, is_ready: Callable[[], bool]) -> None:
        self._registry = names.make_registry("all processes")
        gauge = partial(Gauge, registry=self._registry)
        gauge(names.PROCESSES, "Processes that serve, without the one that starts them.").set(processes)
        gauge(names.READY, "1 while all processes take traffic, else 0.").set_function(lambda: float(is_ready()))
        self.restarts = Counter(
            names.PROCESS_RESTARTS,
            "Processes started instead of ones that died. What one counted since the last scrape is lost with it.",
            registry=self._registry,
        )
        self._ended: Snapshot = []

    async def gather(self, children: Collection[ChildProcess]) -> Snapshot:
        """The metrics of all; `children` are read again once they have answered."""
        asked = [asyncio.ensure_future(child.link.ask_metrics()) for child in children if child.state != "starting"]
        if asked:
            _, late = await asyncio.wait(asked, timeout=ANSWER_SECONDS)
            for waiting in late:
                waiting.cancel()
        theirs = [child.metrics for child in children if child.metrics is not None]
        return await asyncio.to_thread(merge_snapshots, [take_snapshot(self._registry), self._ended, *theirs])

    def keep(self, child: ChildProcess) -> None:
        """Keeps what a child that is gone has counted."""
        if child.metrics is not None:
            self._ended = merge_snapshots([self._ended, totals_of(child.metrics)])


ACCEPTED_AT_ONCE = 64  # connections; then others have their turn
PAUSE_SECONDS = 1.0  # after a failure to accept
RETRY_SECONDS = 0.01  # for children to take connections again, where none of them does


class Distributor:
    """Hands each connection to the child that has the fewest. For one event loop."""

    def __init__(self, listeners: Sequence[socket.socket]) -> None:
        self._listeners = listeners
        self._children: list[ChildProcess] = []
        self._waiting: list[tuple[socket.socket, bool]] = []  # for a child to take them
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
        self._listeners = ()

    def _go_on(self) -> None:
        """Hands on waiting connections, then accepts others; tries again in a moment if no child takes them."""
        while self._waiting and self._hand_on(*self._waiting[0]):
            del self._waiting[0]
        loop = asyncio.get_running_loop()
        if self._waiting:
            self._stop()
            loop.call_later(RETRY_SECONDS, self._go_on)
        elif not self._is_accepting:
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
            self._keep_or_hand_on(connection, was_answered=False)
            if self._waiting:
                return False
        return True

    def _take_back(self, child: ChildProcess) -> None:
        """Hands connections that a child gives up on to others."""
        while True:
            try:
                taken = take_connection(child.connections)
            except OSError:  # none is there, or it is gone
                return
            if taken is None:
                asyncio.get_running_loop().remove_reader(child.connections)
                return
            self._keep_or_hand_on(*taken)

    def _keep_or_hand_on(self, connection: socket.socket, was_answered: bool) -> None:
        if not self._hand_on(connection, was_answered):
            self._waiting.append((connection, was_answered))
            if len(self._waiting) == 1:  # else it is tried again already
                self._go_on()

    def _hand_on(self, connection: socket.socket, was_answered: bool) -> bool:
        """Gives a connection to the child with the fewest, one that answers and is ready before all others.

        One that should have said something by now is less likely to answer.
        """
        takers = [child for child in self._children if child.takes_connections]
        takers.sort(key=lambda child: (child.silence >= LATE_LOOKS, child.state != "ready", child.load, child.given))
        if any(child.give(connection, was_answered) for child in takers):
            connection.close()
            return True
        return False
