"""Headers that every answer has, and how they are written."""

import math

from service.errors import ServiceError

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode("ascii")),
    (b"referrer-policy", b"no-referrer"),
)


def retry_after_seconds(error: ServiceError) -> int:
    """Whole seconds for `Retry-After`, at least 1."""
    return max(1, math.ceil(error.retry_after or 0))
