"""One request and what became of it, as middleware, routes, log and metrics share it."""

import random
import re
import time
from collections.abc import Collection, Mapping
from typing import Any

from service.byte_budget import ByteBudget, Share
from service.error_shapes import OURS, ErrorShape
from service.errors import Invalid

SCOPE_KEY = "polyhead.context"
SERVICES_KEY = "polyhead.services"

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_ids = random.Random()  # noqa: S311 - ids are no secrets; uuid4 asks the kernel each time, a tenth of a request's overhead
# Version 00 ends after the flags, a later one may go on; ff is no version, and ids of zeros are none (W3C, 3.2.2).
_TRACEPARENT = re.compile(
    rb"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", re.DOTALL
)
_LISTS = (b"accept", b"accept-encoding", b"if-none-match")  # several lines are one list (RFC 9110, 5.3)
_NUMBER = re.compile(rb"[0-9]{1,32}(\.[0-9]{1,32})?([eE][+-]?[0-9]{1,3})?")


class RequestContext:
    """One request on its way.

    Attributes:
        trace_id: of the W3C trace that the request is part of, 32 hexadecimal digits, or None.
        request_id: the caller's where it is short and plain, else made here.
        route: template of the route, from a closed set.
        method: HTTP method, from a closed set.
        error_shape: how a failure of this request is written. A route that takes the bodies of several APIs may set it.
        headers: by lower-case name; where a name comes twice the last one, or both where they are one list.
        started: `time.monotonic()` when the headers were there.
        status: HTTP status of the answer, 0 until there is one.
        error_code: code of the error body, or None.
        texts: texts encoded.
        tokens: their tokens.
        truncated: how many of them were cut.
        is_abandoned: whether the client left before the answer.
        has_own_deadline: whether the caller gave it less time than the service does.
    """

    __slots__ = (
        "_answer",
        "error_code",
        "error_shape",
        "has_own_deadline",
        "headers",
        "is_abandoned",
        "method",
        "request_id",
        "route",
        "started",
        "status",
        "texts",
        "tokens",
        "trace_id",
        "truncated",
    )

    def __init__(
        self, route: str, method: str, headers: Collection[tuple[bytes, bytes]], error_shape: ErrorShape = OURS
    ) -> None:
        self.started = time.monotonic()
        self.route = route
        self.method = method
        self.error_shape = error_shape
        self.headers = _by_name(headers)
        self.request_id = request_id_of(self.headers)
        self.trace_id = _trace_id(self.headers.get(b"traceparent"))
        self.status = 0
        self.error_code: str | None = None
        self.texts = 0
        self.tokens = 0
        self.truncated = 0
        self.is_abandoned = False
        self.has_own_deadline = False
        self._answer: Share | None = None

    def hold_answer(self, budget: ByteBudget, size: int) -> None:
        """Holds the bytes of an answer until the context is over.

        Raises:
            HeldTooMuch: all answers together hold as much as they may.
        """
        self._answer = budget.share()
        self._answer.take(size)

    def release(self) -> None:
        """Holds nothing any more."""
        if self._answer is not None:
            self._answer.give_back()

    def deadline(self, longest: float) -> float:
        """When the caller's time is up, by `time.monotonic()`; `X-Request-Timeout` can only shorten it.

        Raises:
            Invalid: the header is no positive number of seconds.
        """
        given = self.headers.get(b"x-request-timeout")
        if given is None:
            return self.started + longest
        seconds = float(given) if _NUMBER.fullmatch(given) else 0.0
        if seconds <= 0:
            raise Invalid("X-Request-Timeout: expected a positive number of seconds", param="X-Request-Timeout")
        self.has_own_deadline = seconds < longest
        return self.started + min(seconds, longest)


def context_of(scope: Any) -> RequestContext:
    """The context that the middleware put into an ASGI scope."""
    context: RequestContext = scope[SCOPE_KEY]
    return context


def _by_name(headers: Collection[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    found = dict(headers)
    if len(found) < len(headers):
        for name in _LISTS:
            if lines := [value for other, value in headers if other == name]:
                found[name] = b", ".join(lines)
    return found


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The caller's where it is short and plain, else one made here."""
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return f"{_ids.getrandbits(128):032x}"


def _trace_id(traceparent: bytes | None) -> str | None:
    """The trace that the caller is in (W3C Trace Context, 3.2); what is not well-formed is ignored, as asked there."""
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent is not None else None
    return found[1].decode("ascii") if found else None
