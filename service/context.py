"""One request and what became of it, as middleware, routes, log and metrics share it; and the bytes that it holds."""

import random
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from service.errors import HeldTooMuch, Invalid
from service.wire import OURS, ErrorShape

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


@dataclass(slots=True, eq=False)
class ByteBudget:
    """How many bytes the process holds for all requests together: of their bodies, or of their answers, unread too.

    Used on the event loop only.

    Attributes:
        limit: bytes.
        what: is held, in the plural, for messages.
        on_full: called for each request that is refused, to make room for those behind it.
    """

    limit: int
    what: str
    held: int = 0
    on_full: Callable[[], None] = lambda: None


@dataclass(slots=True, eq=False)
class Share:
    """What one request holds of a budget, at first nothing, until it is given back or left as a context."""

    _budget: ByteBudget
    held: int = 0

    def take(self, size: int) -> None:
        """Holds more; if nothing else is held, whatever it is: its own limits have let it through.

        Raises:
            HeldTooMuch: the budget is used up.
        """
        budget = self._budget
        if budget.held and budget.held + size > budget.limit:
            budget.on_full()
            raise HeldTooMuch(f"too many {budget.what} are held; try again later")
        self.add(size)

    def add(self, size: int) -> None:
        """Holds more, whatever others hold."""
        self._budget.held += size
        self.held += size

    def give_back(self) -> None:
        """Holds nothing any more."""
        self._budget.held -= self.held
        self.held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()


class RequestContext:
    """One request on its way.

    Attributes:
        trace_id: of the W3C trace that the request is part of, 32 hexadecimal digits, or None, as for a `traceparent`
            that is not well-formed.
        request_id: the caller's if it is short and plain, else made here.
        route: its template, from a closed set, as the method is.
        error_shape: how a failure of this request is written. A route for the bodies of several APIs may set it.
        headers: by lower-case name; of a name that comes twice the last value, or both if they are one list.
        model: name of the model that answers, once it is chosen; from a closed set.
        started: `time.monotonic()` when the headers were there.
        status: HTTP status of the answer, 0 until there is one.
        truncated: how many texts were cut.
        is_abandoned: whether the client left before the answer.
        has_own_deadline: whether the caller gave it less time than the service does.
        at_end: called once the request is over.
    """

    def __init__(
        self, route: str, method: str, headers: Collection[tuple[bytes, bytes]], error_shape: ErrorShape = OURS
    ) -> None:
        self.started = time.monotonic()
        self.route = route
        self.method = method
        self.error_shape = error_shape
        self.headers = _by_name(headers)
        self.request_id = request_id_of(self.headers)
        found = _TRACEPARENT.fullmatch(self.headers.get(b"traceparent", b""))
        self.trace_id = found[1].decode("ascii") if found else None
        self.status = 0
        self.error_code: str | None = None
        self.texts = 0
        self.tokens = 0
        self.truncated = 0
        self.is_abandoned = False
        self.has_own_deadline = False
        self.model = ""
        self.at_end: list[Callable[[], None]] = []

    def hold_answer(self, budget: ByteBudget, size: int) -> None:
        """Holds the bytes of an answer until the request is over.

        Raises:
            HeldTooMuch: all answers together hold as much as they may.
        """
        share = Share(budget)
        share.take(size)
        self.at_end.append(share.give_back)

    def add_answer(self, budget: ByteBudget, size: int) -> None:
        """Holds bytes of an answer that are there already, until the request is over: others find less room."""
        share = Share(budget)
        share.add(size)
        self.at_end.append(share.give_back)

    def end(self) -> None:
        """Gives back what the request held."""
        for give_back in self.at_end:
            give_back()

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
            raise Invalid.at("X-Request-Timeout", "expected a positive number of seconds")
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
    """The caller's request id if it is short and plain, else one made here."""
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return f"{_ids.getrandbits(128):032x}"
