"""Which port and which host name a request came for.

With an admin port, metrics and documentation are there and nowhere else, and nothing else is there but probes and the
files of the documentation.
"""

from collections.abc import Sequence
from typing import Any

from service.errors import MalformedRequest, NotFound
from service.http.route import Route


class HostAndPortPolicy:
    """Refuses requests for a route of the other port, or for another host.

    Args:
        admin_port: the second port, or None where one port has all routes.
        hosts: names that the `Host` header may hold, without port, `*.example.com` for all below; none allows all.
            Probes may hold any: who asks for them knows an address, and no name of ours.
    """

    def __init__(self, admin_port: int | None, hosts: Sequence[str]) -> None:
        self.admin_port = admin_port
        self._names = frozenset(host.lower() for host in hosts if not host.startswith("*."))
        self._endings = tuple(host[1:].lower() for host in hosts if host.startswith("*."))

    def check(self, route: Route, server: Any, host: bytes | None) -> None:
        """Lets a request pass, or not.

        Args:
            route: that it asks for.
            server: ASGI's `server`: address and port that it came to.
            host: its `Host` header.

        Raises:
            NotFound: the route is not on this port.
            MalformedRequest: the host name is none of ours.
        """
        has_ports = self.admin_port is not None and server is not None
        if has_ports and not route.is_on_port(is_admin=server[1] == self.admin_port):
            raise NotFound("no such route on this port")
        if (self._names or self._endings) and not route.is_probe and not self._is_served(host):
            raise MalformedRequest("Host: not a name that is served here", param="Host")

    def _is_served(self, host: bytes | None) -> bool:
        name = (host or b"").decode("latin-1").lower()
        name = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() and not name.endswith("]") else name
        return name in self._names or (bool(self._endings) and name.endswith(self._endings))
