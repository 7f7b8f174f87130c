"""API keys: who may call the routes that need one.

A route needs a key unless its declaration says otherwise, and so does a path without a route. Keys are kept and looked
up as SHA-256 digests: how long a look-up takes depends on the digest, from which nobody can guess a key. The file is
read again when it changes, so that keys can be rotated: add the new one, move the clients, take the old one out.
"""

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from service.errors import Unauthorized

SHORTEST_KEY = 16  # characters; shorter ones can be guessed
LARGEST_FILE = 2**20  # bytes
RELOAD_INTERVAL = 1.0  # seconds between two looks at the file's date

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
        self._given = frozenset(_hash(_checked(key, "the keys given")) for key in keys)
        self._file = file
        self._version = _version(file) if file else None
        self._from_file = _read(file) if file else frozenset()
        self._next_reload = time.monotonic() + RELOAD_INTERVAL

    @property
    def is_needed(self) -> bool:
        """Whether there are keys at all; without any, everybody may ask."""
        return bool(self._given) or self._file is not None

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Checks that a request has a known key; without any keys every request passes.

        Args:
            headers: by lower-case name; the key is in `Authorization: Bearer KEY` or in `X-API-Key`. Where both are
                there, one of them has to be known: proxies and clients put what is no key of ours into the other.

        Raises:
            Unauthorized: no key, or none that is known.
        """
        if not self.is_needed:
            return
        presented = _presented(headers)
        if not presented:
            raise Unauthorized("no API key: send one as Authorization: Bearer KEY or X-API-Key", param="Authorization")
        self._reload()
        digests = {hashlib.sha256(key).digest() for key in presented}
        if digests.isdisjoint(self._given) and digests.isdisjoint(self._from_file):
            raise Unauthorized("the API key is not known", param="Authorization")

    def _reload(self) -> None:
        """Reads the file again if it has changed."""
        now = time.monotonic()
        if self._file is None or now < self._next_reload:
            return
        self._next_reload = now + RELOAD_INTERVAL
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


def _read(file: Path) -> frozenset[bytes]:
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
    return frozenset(map(_hash, keys))


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
    """Changes with the file, also when a symbolic link is pointed at another file, as Kubernetes does."""
    try:
        status = file.stat()
    except OSError as error:
        raise KeysError(f"cannot read the API keys in {file}: {error.strerror}") from error
    return status.st_ino, status.st_size, status.st_mtime_ns
