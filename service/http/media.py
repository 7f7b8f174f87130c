"""Content negotiation: `Accept` and `Accept-Encoding` (RFC 9110, sections 12.5.1 and 12.5.3)."""

JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"


def quality(accept: bytes, media_type: str) -> float:
    """A type's quality value, 0 to 1, from the narrowest range that covers it; 0 where none does."""
    kind = media_type.partition("/")[0]
    ranges = _ranges(accept)
    return next((ranges[name] for name in (media_type, f"{kind}/*", "*/*") if name in ranges), 0.0)


def prefers_safetensors(accept: bytes | None) -> bool:
    """Whether an answer is sent as safetensors: named, and wanted at least as much as JSON.

    A range such as `*/*` means JSON: a caller that can read safetensors names it.
    """
    if accept is None or SAFETENSORS.encode("ascii") not in accept.lower():
        return False
    wanted = _ranges(accept).get(SAFETENSORS, 0.0)
    return wanted > 0 and wanted >= quality(accept, JSON)


def accepts_gzip(accept_encoding: bytes | None) -> bool:
    """Whether a caller takes gzip, by `Accept-Encoding` (RFC 9110, section 12.5.3)."""
    if accept_encoding is None:
        return False
    wanted = _ranges(accept_encoding)
    return wanted.get("gzip", wanted.get("*", 0.0)) > 0


def _ranges(accept: bytes) -> dict[str, float]:
    found = {}
    for part in accept.decode("latin-1").lower().split(","):
        name, *parameters = (field.strip() for field in part.split(";"))
        found[name] = min((_weight(field) for field in parameters if field.startswith("q=")), default=1.0)
    return found


def _weight(parameter: str) -> float:
    """The value of `q=0.5`; anything but a number from 0 to 1 counts as 1."""
    try:
        weight = float(parameter[2:])
    except ValueError:
        return 1.0
    return weight if 0 <= weight <= 1 else 1.0
