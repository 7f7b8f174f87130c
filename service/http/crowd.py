"""The protocol where there are many clients: each connection has a place, or is turned away.

Beyond the most, a few places are for one probe or scrape each: a process that is merely popular must not look dead to
whoever restarts it. They are held for a moment only, so that the next probe finds one free.
"""

import asyncio

from service.errors import TooManyConnections
from service.http.connection import PROBE_SECONDS, PROBES, Place
from service.http.protocol import BoundedProtocol


class PlacedProtocol(BoundedProtocol):
    """One connection among many."""

    _place: Place | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Takes the client in, or turns it away where there are too many."""
        super().connection_made(transport)
        self._place = self._limits.places.enter(self.server[1] if self.server is not None else None)
        if self._place is None:
            self._refuse(_too_many())

    def connection_lost(self, exc: Exception | None) -> None:
        """Frees the place."""
        super().connection_lost(exc)
        self._leave()

    def on_headers_complete(self) -> None:
        """Turns away what asks for more than its place is for."""
        is_request = self._place == "probe" and not self.parser.should_upgrade()  # else it comes a second time
        if is_request and self.url.partition(b"?")[0] not in PROBES:
            self._object(_too_many())
        super().on_headers_complete()
        if is_request:
            self.cycle.keep_alive = False

    def check(self, now: float) -> None:
        """Turns away who holds a probe's place and does not ask."""
        if self._place == "probe" and self._awaited_since is not None and now > self._awaited_since + PROBE_SECONDS:
            self._refuse(_too_many())
        super().check(now)

    def _linger(self) -> None:
        if self._place == "probe":  # it is the next one's while this client reads its answer
            self._leave()
        super()._linger()

    def _leave(self) -> None:
        if self._place is not None:
            self._limits.places.leave(self._place)
            self._place = None


def _too_many() -> TooManyConnections:
    return TooManyConnections("too many connections; try again later", retry_after=1.0)
