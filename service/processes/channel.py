"""What parent and child give each other, over two pairs of connected Unix sockets: messages, and open connections.

A message is a line of JSON. Whoever takes a connection (unix(7), SCM_RIGHTS) goes on where the other one stopped: what
the client sent meanwhile waits in the kernel.

The child says
    hello       it takes connections
    ready       its model is loaded
    beat        it runs; `is_alive`: whether its workers answer. Four times a second
    closed      `total`: how many connections have ended
    scrape      it asks for the metrics of all
    snapshot    its metrics: asked for, or the last ones
    leave       somebody asked it to end: it wants to be replaced

and the parent
    start       first: what the child is (`Assignment`)
    group       `is_ready` and `is_alive` of all
    scrape      asks for a snapshot
    snapshot    the metrics of all
    leave       hand connections back as soon as nothing is under way on them, then end
    drain       not ready any more, but serve on
    end         no more connections come: finish what is there and end
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

import orjson

from service.observability.snapshots import Snapshot

BEAT_INTERVAL = 0.25  # seconds between two beats of a child, and between two looks of its parent
MAX_LINE = 2**26  # bytes; a snapshot has some 200,000
_MARKS = (b"c", b"i")  # each connection comes with one byte, the second one if a request was answered on it

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a child is told before anything else.

    Attributes:
        index: its place, from 0; one that replaces another has the same.
        settings: its own, of JSON's types.
        cores: that it is tied to; None for all.
        load: where the function is that makes its runner, as `module:name`; None for the service's own.
        program: what the service was started as, for messages.
        address: where clients reach it, for the log.
    """

    index: int
    settings: dict[str, Any]
    cores: list[int] | None
    load: str | None
    program: str
    address: str

    @classmethod
    def read(cls, control: socket.socket) -> Self:
        """Waits for it, before there is an event loop."""
        received = bytearray()
        while not received.endswith(b"\n"):
            if not (byte := control.recv(1)):  # not more: the next message belongs to the loop
                raise EOFError("the parent is gone")
            received += byte
        found = orjson.loads(received)
        del found["kind"]
        return cls(**found)


class Link:
    """One end of the line between parent and child. For one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._asked: asyncio.Future[Snapshot | None] | None = None

    @classmethod
    async def open(cls, control: socket.socket) -> Self:
        """Over a connected socket, which is its own from now on."""
        return cls(*await asyncio.open_unix_connection(sock=control, limit=MAX_LINE))

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message; one to a process that is gone is lost."""
        if not self._writer.is_closing():
            self._writer.write(line_of(kind, **fields))

    async def finish(self) -> None:
        """Says no more, once the other side can have all that was sent."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def ask_metrics(self) -> Snapshot | None:
        """The metrics of the other side, for which somebody has to read its messages; None if it ends before.

        Whoever asks while another one waits gets the same.
        """
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self.send("scrape")
        return await asyncio.shield(self._asked)

    async def messages(self) -> AsyncIterator[Message]:
        """What the other side says, until it ends."""
        with contextlib.suppress(OSError):
            while (line := await self._reader.readline()).endswith(b"\n"):  # else it was killed in the middle of it
                message: Message = orjson.loads(line)
                if message["kind"] == "snapshot":
                    self._answer(message["metrics"])
                yield message
        self._answer(None)

    def _answer(self, metrics: Snapshot | None) -> None:
        if self._asked is not None:
            self._asked.set_result(metrics)
            self._asked = None


def line_of(kind: str, **fields: Any) -> bytes:
    """A message as it is sent."""
    return orjson.dumps({"kind": kind, **fields}, option=orjson.OPT_APPEND_NEWLINE)


def give_connection(channel: socket.socket, descriptor: int, was_answered: bool = False) -> bool:
    """Hands a connection on, and whether a request was answered on it; False if the other side takes none at present.

    The caller's own descriptor stays open, and is theirs to close.
    """
    try:
        socket.send_fds(channel, [_MARKS[was_answered]], [descriptor])
    except OSError:
        return False
    return True


def take_connection(channel: socket.socket) -> tuple[socket.socket, bool] | None:
    """The next connection and whether a request was answered on it; None if the other side hands on no more.

    Raises:
        BlockingIOError: none is there yet.
        OSError: one came, and this process has no descriptor for it.
    """
    mark, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not mark:
        return None
    if not descriptors:
        raise OSError(errno.EMFILE, "a connection was lost: no descriptor is left for it")
    return socket.socket(fileno=descriptors[0]), mark == _MARKS[True]
