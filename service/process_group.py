"""What a process knows of the others that serve with it behind one port."""

from typing import Protocol

from service.observability.snapshots import Snapshot


class ProcessGroup(Protocol):
    """All processes of a service, as one of them sees them."""

    def check_ready(self) -> None:
        """Raises `NotReady` unless every process takes traffic."""
        ...

    def check_alive(self) -> None:
        """Raises `NotReady` where a process does not answer."""
        ...

    async def snapshot(self) -> Snapshot | None:
        """The metrics of all processes together; None where there is one, whose own are all."""
        ...


class Alone:
    """One process, which answers for itself."""

    def check_ready(self) -> None:
        """Nobody else has to be ready."""

    def check_alive(self) -> None:
        """Nor to answer."""

    async def snapshot(self) -> None:
        """Its own metrics are all."""
