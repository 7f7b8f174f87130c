"""API keys: who may ask, and routes that everyone may ask.

Everything but `OPEN_ROUTES` needs a key once there is one, routes that do not exist included: a new route is closed
until somebody opens it here. Keys are compared by hash and in constant time. The file is read again when it changes,
so that keys can be rotated: add the new one, move the clients, take the old one out.
"""

import hashlib
import hmac
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from service.errors import Unauthorized

SHORTEST_KEY = 16  # characters; shorter ones can be guessed
LARGEST_FILE = 2**20  # bytes
LOOK_EVERY = 1.0  # seconds between two looks at the file's date

OPEN_ROUTES = frozenset(
    {
        # probes: whoever restarts the process has no key
        *(("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/health")),
        *(("GET", "/v2/health/live"), ("GET", "/v2/health/ready")),
        # what the process says of itself, without a word of what it was sent; --admin-port moves it elsewhere
        *(("GET", "/metrics"), ("GET", "/docs"), ("GET", "/openapi.json")),
        # the viewer's own files: it asks the API with a key
        *(("GET", "/"), ("GET", "/static/{path:path}")),
    }
)

logger = logging.getLogger(__name__)


class KeysError(ValueError):
    """Keys that cannot be used; the message never holds one."""


class KeyRing:
    """The keys that are accepted now.

    Args:
        keys: given once.
        file: one key a line; empty lines and lines that begin with # are skipped. Read again when it changes; a change
            that leaves no usable file is logged and the keys from before stay.

    Raises:
        KeysError: a key is too short or not plain text, or the file cannot be read or holds none.
    """

    def __init__(self, keys: Sequence[str] = (), file: Path | None = None) -> None:
        self._given = [_hash(_checked(key, "the keys given")) for key in keys]
        self._file = file
        self._version = _version(file) if file else None
        self._from_file = _read(file) if file else []
        self._next_look = time.monotonic() + LOOK_EVERY

    @property
    def is_needed(self) -> bool:
        """Whether there are keys at all; without any, everybody may ask."""
        return bool(self._given) or self._file is not None

    def check(self, method: str, route: str, headers: Mapping[bytes, bytes]) -> None:
        """Lets a request pass, or not.

        Args:
            method: HTTP method; HEAD is GET.
            route: its template.
            headers: by lower-case name; the key is in `Authorization: Bearer KEY` or in `X-API-Key`. Where both are
                there, one of them has to be known: proxies and clients put what is no key of ours into the other.

        Raises:
            Unauthorized: no key, or none that is known.
        """
        if not self.is_needed or ("GET" if method == "HEAD" else method, route) in OPEN_ROUTES:
            return
        presented = _presented(headers)
        if not presented:
            raise Unauthorized("no API key: send one as Authorization: Bearer KEY or X-API-Key", param="Authorization")
        if not any(self._knows(key) for key in presented):
            raise Unauthorized("the API key is not known", param="Authorization")

    def _knows(self, presented: bytes) -> bool:
        self._look()
        digest = hashlib.sha256(presented).digest()
        known = False
        for key in (*self._given, *self._from_file):
            known |= hmac.compare_digest(digest, key)  # all of them, always: time tells nothing
        return known

    def _look(self) -> None:
        """Reads the file again if it is another one than before."""
        now = time.monotonic()
        if self._file is None or now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY
        try:
            if (version := _version(self._file)) == self._version:
                return
            self._version, self._from_file = version, _read(self._file)
            logger.info("API keys read again: %d", len(self._from_file))
        except KeysError as error:
            logger.error("API keys stay as they were: %s", error)


def _presented(headers: Mapping[bytes, bytes]) -> list[bytes]:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    bearer = token.strip() if scheme.lower() == b"bearer" else b""
    return [key for key in (bearer, headers.get(b"x-api-key", b"")) if key]


def _read(file: Path) -> list[bytes]:
    try:
        with file.open("rb") as opened:
            content = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        raise KeysError(f"cannot read the API keys in {file}: {error.strerror}") from error
    if len(content) > LARGEST_FILE:
        raise KeysError(f"{file} is larger than {LARGEST_FILE} bytes: expected API keys, one a line")
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines()]
    keys = [_checked(line, str(file)) for line in lines if line and not line.startswith("#")]
    if not keys:
        raise KeysError(f"{file} holds no API key: expected one a line")
    return [_hash(key) for key in keys]


def _checked(key: str, place: str) -> str:
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise KeysError(
            f"an API key in {place} cannot be used: expected at least {SHORTEST_KEY} printable ASCII characters "
            "without spaces, for example from `openssl rand -hex 32`"
        )
    return key


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("ascii")).digest()


def _version(file: Path) -> tuple[int, int, int]:
    """Changes when the file does, also where a symbolic link is turned to another file, as Kubernetes does."""
    try:
        status = file.stat()
    except OSError as error:
        raise KeysError(f"cannot read the API keys in {file}: {error.strerror}") from error
    return status.st_ino, status.st_size, status.st_mtime_ns
