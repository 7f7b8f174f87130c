"""Who may call: with which key, at which port, under which host name, from pages of which origin."""

import hashlib
import logging
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Scope, Send

from service.context import RequestContext
from service.errors import MalformedRequest, NotFound, Unauthorized
from service.http.route import Route

SHORTEST_KEY = 16  # characters; shorter ones can be guessed
RELOAD_INTERVAL = 1.0  # seconds between two looks at the file's date

# A name or an address, and a port (RFC 9110, 7.2); the name's labels are not empty, but for one at its end.
_HOST = re.compile(rb"((?:[A-Za-z0-9_-]++\.?)++|\[[0-9a-fA-F:.]+\])(?::[0-9]*)?")

logger = logging.getLogger(__name__)


class KeysError(ValueError):
    """Keys that cannot be used; the message never holds one."""


class KeyRing:
    """The API keys that are accepted now.

    They are looked up as SHA-256 digests, so that the time this takes says nothing of a key.

    Args:
        keys: given once.
        file: one key a line; empty lines and lines that begin with # are skipped. Read again when it changes; a change
            that leaves no usable file is logged and the keys from before stay.

    Raises:
        KeysError: a key is too short or not plain text, or the file cannot be read or holds none.
    """

    def __init__(self, keys: Sequence[str], file: Path | None = None) -> None:
        self._given = frozenset(_digest(key, "the keys given") for key in keys)
        self._file = file
        self._version: tuple[int, int, int] | None = None
        self._from_file: frozenset[bytes] = frozenset()
        if file is not None:
            self._read_changes(file)
        self._next_look = time.monotonic() + RELOAD_INTERVAL

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Checks that a request has a known key; without any keys every request passes.

        It is in `Authorization: Bearer KEY` or in `X-API-Key`. Where both are there, one of them has to be known:
        proxies and clients put what is no key of ours into the other.

        Raises:
            Unauthorized: no key, or none that is known.
        """
        if not self._given and self._file is None:
            return
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        bearer = token.strip() if scheme.lower() == b"bearer" else b""
        presented = [key for key in (bearer, headers.get(b"x-api-key", b"")) if key]
        if not presented:
            raise Unauthorized("no API key: send one as Authorization: Bearer KEY or X-API-Key", param="Authorization")
        if self._file is not None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + RELOAD_INTERVAL
            try:
                self._read_changes(self._file)
            except KeysError as error:
                logger.error("API keys stay as they were: %s", error)
        digests = {hashlib.sha256(key).digest() for key in presented}
        if digests.isdisjoint(self._given) and digests.isdisjoint(self._from_file):
            raise Unauthorized("the API key is not known", param="Authorization")

    def _read_changes(self, file: Path) -> None:
        """Reads the file if it has changed, or if a symbolic link points at another one, as Kubernetes's do."""
        try:
            status = file.stat()
            version = status.st_ino, status.st_size, status.st_mtime_ns
            if version == self._version:
                return
            lines = [line.strip() for line in file.read_bytes().decode("utf-8-sig", "replace").splitlines()]
        except OSError as error:
            raise KeysError(f"cannot read the API keys in {file}: {error.strerror}") from error
        keys = frozenset(_digest(line, str(file)) for line in lines if line and not line.startswith("#"))
        if not keys:
            raise KeysError(f"{file} holds no API key: expected one a line")
        if self._version is not None:
            logger.info("API keys read again: %d", len(keys))
        self._version, self._from_file = version, keys


def _digest(key: str, place: str) -> bytes:
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise KeysError(
            f"an API key in {place} cannot be used: expected at least {SHORTEST_KEY} printable ASCII characters "
            "without spaces, for example from `openssl rand -hex 32`"
        )
    return hashlib.sha256(key.encode("ascii")).digest()


class HostAndPortPolicy:
    """Refuses requests for a route of the other port, or for another host.

    With an admin port, metrics and documentation are there and nowhere else, and nothing else is there but probes and
    the files of the documentation.

    Args:
        admin_port: the second port, or None if one port has all routes.
        hosts: names that the `Host` header may hold, without port, `*.example.com` for all below; none allows all.
            Probes may hold any: a prober knows an address, and no name of the service.
    """

    def __init__(self, admin_port: int | None, hosts: Sequence[str]) -> None:
        self.admin_port = admin_port
        self._names = frozenset(host.lower() for host in hosts if not host.startswith("*."))
        self._endings = tuple(host[1:].lower() for host in hosts if host.startswith("*."))

    def check(self, route: Route, server: Any, host: bytes | None) -> None:
        """Lets a request pass that came to `server`, ASGI's address and port, under a host name, or not.

        Raises:
            NotFound: the route is not on this port.
            MalformedRequest: the host name is not served here.
        """
        if route.access == "operator" and self.admin_port is None:
            raise NotFound("no such route: it is on the admin port, and there is none")
        has_ports = self.admin_port is not None and server is not None
        if has_ports and not route.is_on_port(is_admin=server[1] == self.admin_port):
            raise NotFound("no such route on this port")
        if (self._names or self._endings) and not route.is_probe and not self._is_served(host):
            raise MalformedRequest("Host: not a name that is served here", param="Host")

    def _is_served(self, host: bytes | None) -> bool:
        found = _HOST.fullmatch(host or b"")
        if found is None:
            return False
        name = found[1].decode("ascii").lower().removesuffix(".")  # of the root, which the same name may end in
        return name in self._names or any(name.endswith(end) and name != end for end in self._endings)


class CrossOriginPolicy(CORSMiddleware):
    """Lets pages of some origins call the API from a browser (CORS), by starlette's rules.

    Parts of starlette's middleware are called from ours, so that a preflight is checked, logged and counted as every
    request is. `exposed` are the headers of answers that pages may read.
    """

    def __init__(self, origins: Sequence[str], methods: Sequence[str], exposed: Sequence[str]) -> None:
        super().__init__(
            None,  # type: ignore[arg-type]  # only its parts are used, it wraps nothing
            allow_origins=origins,
            allow_methods=methods,
            allow_headers=("*",),  # clients add headers of their own, and keys are in headers, not in cookies
            expose_headers=exposed,
        )

    def sender(self, scope: Scope, send: Send) -> Send:
        """Adds what lets the page read the answer."""
        return partial(self.send, send=send, request_headers=Headers(scope=scope))


def is_preflight(context: RequestContext) -> bool:
    """Whether a browser asks, before it sends a page's request, if it may."""
    headers = context.headers
    return context.method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers
