"""Which port and which host name a request came for.

With an admin port, metrics and documentation are there and nowhere else, and nothing else is there but probes. It knows
no app: only templates of routes.
"""

from collections.abc import Sequence
from typing import Any

from service.errors import MalformedRequest, NotFound
from service.http.connection import PROBES

ADMIN_ROUTES = frozenset({"/metrics", "/docs", "/openapi.json"})
SHARED_ROUTES = frozenset({"/healthz", "/readyz", "/static/{path:path}"})  # probes; files of documentation and viewer
ROUTES_BY_ADDRESS = frozenset(path.decode("ascii") for path in PROBES)  # who asks for them knows no name of ours


class Doors:
    """Lets each request in by its own door.

    Args:
        admin_port: the second port, or None where one port has all routes.
        hosts: names that the `Host` header may hold, without port, `*.example.com` for all below; none allows all.
            Probes and scrapes may hold any.
    """

    def __init__(self, admin_port: int | None, hosts: Sequence[str]) -> None:
        self.admin_port = admin_port
        self._names = frozenset(host.lower() for host in hosts if not host.startswith("*."))
        self._endings = tuple(host[1:].lower() for host in hosts if host.startswith("*."))

    def check(self, route: str, server: Any, host: bytes | None) -> None:
        """Lets a request pass, or not.

        Args:
            route: template of its route.
            server: ASGI's `server`: address and port that it came to.
            host: its `Host` header.

        Raises:
            NotFound: the route is not on this port.
            MalformedRequest: the host name is none of ours.
        """
        if self.admin_port is not None and server is not None:
            self._check_port(route, is_admin=server[1] == self.admin_port)
        has_names = bool(self._names or self._endings)
        if has_names and route not in ROUTES_BY_ADDRESS and not self._is_ours(host):
            raise MalformedRequest("Host: not a name that is served here", param="Host")

    def _check_port(self, route: str, *, is_admin: bool) -> None:
        if route in SHARED_ROUTES:
            return
        if is_admin != (route in ADMIN_ROUTES):
            raise NotFound("no such route on this port")

    def _is_ours(self, host: bytes | None) -> bool:
        name = (host or b"").decode("latin-1").lower()
        name = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() and not name.endswith("]") else name
        return name in self._names or (bool(self._endings) and name.endswith(self._endings))
