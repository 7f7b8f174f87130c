"""Rules of RFC 9112 and 9110 on a request's head. The parser checks its syntax."""

import re
from collections.abc import Iterator, Mapping

Headers = list[tuple[bytes, bytes]]  # names in lower case

_TOKEN_BYTES = 5  # of a body with one English sentence, the JSON around it included; 4 to 6 in nine of ten
_SENTENCE_TOKENS = 32  # of a body that does not say its length

_NO_PATH = re.compile(rb"([a-zA-Z][a-zA-Z0-9+.-]*://[^/?#]+)(\?.*)?")
_UPGRADE_HEADERS = (b"upgrade", b"http2-settings")  # `Connection` lists them by these names, too


def host_problem(version: str, headers: Headers) -> str | None:
    """What is wrong with the number of `Host` headers, or None (RFC 9112, 3.2).

    Before HTTP/1.1 there may be none. Two are refused: a proxy on the way may have used the other one.
    """
    hosts = [name for name, _ in headers].count(b"host")
    if hosts == 1 or (hosts == 0 and version < "1.1"):
        return None
    return f"Host: expected one such header, got {hosts}"


def expected_tokens(headers: Mapping[bytes, bytes]) -> int:
    """How many tokens a request has, about, by the length of its body."""
    length = headers.get(b"content-length")
    return _SENTENCE_TOKENS if length is None else max(1, int(length) // _TOKEN_BYTES)


def with_path(target: bytes) -> bytes:
    """A request's target; a URL without a path, as callers of proxies send it, means `/` (RFC 9110, 4.2.3)."""
    if target.startswith(b"/"):
        return target
    found = _NO_PATH.fullmatch(target)
    return found[1] + b"/" + (found[2] or b"") if found else target


def without_upgrade(headers: Headers) -> Iterator[tuple[bytes, bytes]]:
    """Headers without the offer to upgrade. `Connection` keeps its other tokens."""
    for name, value in headers:
        if name == b"connection":
            kept = [token for token in value.split(b",") if token.strip().lower() not in _UPGRADE_HEADERS]
            yield name, b",".join(kept)
        elif name not in _UPGRADE_HEADERS:
            yield name, value
