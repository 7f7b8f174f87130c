"""How many connections are open at once: each has a slot, or is refused.

The admin port has slots of its own, so that probes and scrapes get through however many clients the first port has.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from service.errors import TooManyConnections
from service.http.paced import PacedProtocol
from service.http.protocol import BoundedProtocol

ADMIN_CONNECTIONS = 64
"""To the admin port, for probes and whoever scrapes."""
REFUSED_CONNECTIONS = 64
"""Refused clients that may still read their answer. Beyond, the one that was refused first is cut off."""

Slot = Literal["first port", "admin port"]


class ConnectionSlots:
    """Open connections of a process.

    Attributes:
        on_closed: called for each connection that is over; None where nobody counts them.
        on_idle: given each connection some time after it was answered; None where all of them stay.

    Args:
        most: to the first port.
        admin_port: the other one, or None.
    """

    def __init__(self, most: int, admin_port: int | None = None) -> None:
        self.on_closed: Callable[[], None] | None = None
        self.on_idle: Callable[[BoundedProtocol], None] | None = None
        self._admin_port = admin_port
        self._free: dict[Slot, int] = {"first port": most, "admin port": ADMIN_CONNECTIONS}
        self._refused: dict[BoundedProtocol, None] = {}  # in the order of their refusal

    def take(self, port: int | None) -> Slot | None:
        """Takes a slot at a port, for `release` to free; None where there is none."""
        slot: Slot = "admin port" if port is not None and port == self._admin_port else "first port"
        if not self._free[slot]:
            return None
        self._free[slot] -= 1
        return slot

    def release(self, slot: Slot) -> None:
        """Frees a slot."""
        self._free[slot] += 1

    def add_refused(self, connection: BoundedProtocol) -> None:
        """Notes a refused client, whose connection takes a descriptor until it has read its answer."""
        self._refused[connection] = None
        if len(self._refused) > REFUSED_CONNECTIONS:
            first = next(iter(self._refused))
            del self._refused[first]
            first.transport.abort()

    def discard_refused(self, connection: BoundedProtocol) -> None:
        """Forgets a refused client that is gone."""
        self._refused.pop(connection, None)


class ConnectionLimitProtocol(PacedProtocol):
    """One connection of a limited number.

    Args:
        slots: of the process.
    """

    def __init__(self, *args: Any, slots: ConnectionSlots, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._slots = slots
        self._slot: Slot | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Takes a slot, or refuses the client where there is none."""
        super().connection_made(transport)
        self._slot = self._slots.take(self.server[1] if self.server is not None else None)
        if self._slot is None:
            self._refuse(TooManyConnections("too many connections; try again later", retry_after=1.0))
            self._slots.add_refused(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Frees the slot."""
        super().connection_lost(exc)
        if self._slot is None:
            self._slots.discard_refused(self)
        else:
            self._slots.release(self._slot)
            self._slot = None
        if self._slots.on_closed is not None:
            self._slots.on_closed()

    def on_response_complete(self) -> None:
        """Offers the connection to whoever wants idle ones, once the answer is written."""
        super().on_response_complete()
        if self._slots.on_idle is not None:
            self.loop.call_soon(self._slots.on_idle, self)
