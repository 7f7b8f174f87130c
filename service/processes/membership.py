"""A child's line to its parent: what it says of itself, and what it is told of all processes together."""

import asyncio
import itertools
import socket
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from service.errors import NotReady
from service.observability.snapshots import Snapshot, take_snapshot
from service.processes.messages import Link, Message

RETRY_AFTER_SECONDS = 1.0
REPORT_INTERVAL = 0.005  # seconds; connections that end within it are reported together
SCRAPE_SECONDS = 5.0


class Membership:
    """One of several processes, for its readiness, its metrics and its server. A `ProcessGroup`.

    Args:
        control: the line to the parent.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._link: Link | None = None
        self._is_group_ready = False
        self._is_group_alive = True
        self._closed = 0
        self._is_report_due = False
        self._scrapes: dict[int, asyncio.Future[Snapshot]] = {}
        self._ids = itertools.count(1)

    async def open(self) -> None:
        """Opens the line, on the loop that uses it."""
        self._link = await Link.open(self._control)

    async def follow(self, registry: CollectorRegistry, on_order: Callable[[str], None]) -> None:
        """Does what the parent says until it says no more, which orders the end.

        Args:
            registry: this process's metrics.
            on_order: given `leave`, `drain` or `end`.
        """
        assert self._link is not None  # noqa: S101 - opened before
        self.say("hello")
        async for message in self._link.messages():
            match message["kind"]:
                case "group":
                    self._is_group_ready, self._is_group_alive = message["is_ready"], message["is_alive"]
                case "scrape":
                    await self._send_snapshot(registry, message["id"])
                case "snapshot":
                    self._receive_whole(message)
                case order:
                    on_order(order)
        on_order("end")

    def say(self, kind: str, **fields: object) -> None:
        """Tells the parent something, if there is one."""
        if self._link is not None:
            self._link.send(kind, **fields)

    async def finish(self, registry: CollectorRegistry) -> None:
        """Leaves the parent the last metrics."""
        await self._send_snapshot(registry, 0)
        if self._link is not None:
            await self._link.finish()

    def count_closed(self) -> None:
        """Notes that a connection is over, for the parent to give this process others."""
        self._closed += 1
        if not self._is_report_due:
            self._is_report_due = True
            asyncio.get_running_loop().call_later(REPORT_INTERVAL, self._report_closed)

    def check_ready(self) -> None:
        """See `ProcessGroup`."""
        if not self._is_group_ready:
            raise NotReady("another process is not ready", retry_after=RETRY_AFTER_SECONDS)

    def check_alive(self) -> None:
        """See `ProcessGroup`."""
        if not self._is_group_alive:
            raise NotReady("another process does not answer", retry_after=RETRY_AFTER_SECONDS)

    async def snapshot(self) -> Snapshot:
        """See `ProcessGroup`.

        Raises:
            NotReady: the parent does not answer.
        """
        number = next(self._ids)
        answer = self._scrapes[number] = asyncio.get_running_loop().create_future()
        self.say("scrape", id=number)
        try:
            return await asyncio.wait_for(answer, SCRAPE_SECONDS)
        except TimeoutError:
            raise NotReady("the parent process does not answer", retry_after=RETRY_AFTER_SECONDS) from None
        finally:
            del self._scrapes[number]

    async def _send_snapshot(self, registry: CollectorRegistry, number: int) -> None:
        self.say("snapshot", id=number, metrics=await asyncio.to_thread(take_snapshot, registry))

    def _receive_whole(self, message: Message) -> None:
        answer = self._scrapes.get(message["id"])
        if answer is not None and not answer.done():
            answer.set_result(message["metrics"])

    def _report_closed(self) -> None:
        self._is_report_due = False
        self.say("closed", total=self._closed)
