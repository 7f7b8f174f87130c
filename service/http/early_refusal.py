"""Refuses requests from their head alone while the queue refuses: before a task, a body or a log line of theirs exists.

The first refusal takes the usual way. For a second after any refusal the queue is asked as soon as a head is there.
Such refusals are counted in the metrics, each of them, and logged in sums.
"""

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from service.context import request_id_of
from service.errors import Overloaded, ServiceError
from service.http.access import HostAndPortPolicy, KeyRing
from service.http.connection import Headers, expected_tokens, refusal_bytes
from service.http.response import retry_after_seconds
from service.http.route import RouteTable
from service.observability.metrics import Metrics

ALERT_SECONDS = 1.0  # after a refusal, that the next ones are refused early
FIRST_PAUSE = 0.1  # seconds
PAUSE_GROWTH = 4

logger = logging.getLogger(__name__)


class EarlyAnswer(NamedTuple):
    """A refusal: the whole answer, its `Retry-After` in seconds, and about how many tokens were refused."""

    data: bytes
    retry_after: int
    tokens: int


class EarlyRefusals:
    """Knows whether the queue refuses (`Batcher.early_refusal`), and writes refusals. On the event loop only.

    Requests of pages take the usual way where browsers read answers: those have headers for other origins.
    """

    def __init__(
        self,
        routes: RouteTable,
        refusal_of: Callable[[int, int, int], Overloaded | None],
        keys: KeyRing,
        ports: HostAndPortPolicy,
        metrics: Metrics,
        *,
        is_read_by_browsers: bool,
    ) -> None:
        self._routes = routes
        self.refusal_of = refusal_of
        self._keys = keys
        self._ports = ports
        self._metrics = metrics
        # Headers of requests that take the usual way; a client that sends `Expect` sends its body later, or never.
        self._usual_way = {b"expect", *([b"origin"] if is_read_by_browsers else [])}
        self._alert_until = 0.0
        self._refused: Counter[str] = Counter()
        self._refused_clients = self._refused_tokens = 0  # connections whose last request was refused
        self._let_through = 0  # requests since the loop's turn began, of which the queue does not know yet

    @property
    def is_alert(self) -> bool:
        """Whether the queue refused somebody a moment ago."""
        return time.monotonic() < self._alert_until

    def note(self) -> None:
        """Notes that the queue has refused a request."""
        self._alert_until = time.monotonic() + ALERT_SECONDS

    def refuse(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        server: Any,
        *,
        default_headers: Sequence[tuple[bytes, bytes]],
        keeps_alive: bool,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> EarlyAnswer | None:
        """The refusal; None for a request that is to take its usual way."""
        path = target.partition(b"?")[0].decode("latin-1")  # one that has to be decoded is no route's
        route, _ = self._routes.find(method, path)
        by_name = dict(headers)
        if not route.is_queued or not self._usual_way.isdisjoint(by_name):
            return None
        try:
            self._ports.check(route, server, by_name.get(b"host"))
            if route.needs_key:
                self._keys.check(by_name)
            tokens = expected_tokens(by_name)
            # With fair turns a larger request goes before this one only as far as this one's own tokens.
            again = min(self._refused_tokens, self._refused_clients * tokens)
            refusal = self.refusal_of(tokens, self._let_through, again)
        except ServiceError:  # the usual way says it
            return None
        if refusal is None:
            if not self._let_through:
                call_soon(self._begin_turn)
            self._let_through += 1
            return None
        self.note()
        self._refused[route.path] += 1
        self._metrics.count_early_refusal(route.path, method, refusal.code)
        named = (*default_headers, (b"x-request-id", request_id_of(by_name).encode("ascii")))
        answer = refusal_bytes(refusal, shape=route.error_shape, headers=named, closes=not keeps_alive)
        return EarlyAnswer(answer, retry_after_seconds(refusal), tokens)

    def count_refused(self, before: int, now: int) -> None:
        """Notes a connection's refused tokens: of the request before, and of the last one; 0 for one that was not."""
        self._refused_tokens += now - before
        self._refused_clients += bool(now) - bool(before)

    def _begin_turn(self) -> None:
        """Tasks of the requests let through run now, and queue them."""
        self._let_through = 0

    def report(self) -> None:
        """Logs how many were refused since the last report, where any was."""
        if self._refused:
            refused, self._refused = dict(self._refused), Counter()
            logger.info("requests refused early", extra={"fields": {"refused": refused}})


class RefusedClient:
    """A connection's refusals in a row: a client that was refused with 429 and asks again at once is slowed down.

    From the second refusal on, its next request is read up to 0.1, 0.4, 1.6 seconds later, and so on, never later than
    the `Retry-After` that it was given. Chance takes up to half of a pause, so that not all come again together.
    """

    def __init__(self, early: EarlyRefusals) -> None:
        self._early = early
        self._tokens = 0  # of the last request, if it was refused
        self._retry_after = 0
        self._next_pause = 0.0  # seconds
        self._may_ask_again = 0.0  # by the clock of `pause`

    def note(self, tokens: int, retry_after: int) -> None:
        """Notes a refused request: about how many tokens it has, and the seconds of its `Retry-After`."""
        self._early.count_refused(self._tokens, tokens)
        self._tokens, self._retry_after = tokens, retry_after

    def end(self) -> None:
        """Ends the row: a request was answered, or the client is gone."""
        self.note(0, 0)
        self._next_pause = 0.0

    def pause(self, now: float) -> float:
        """Seconds until the next request is read."""
        longest = 0.0 if now >= self._may_ask_again else min(self._next_pause, self._retry_after)
        seconds = longest * random.uniform(0.5, 1)  # noqa: S311 - no secret
        self._next_pause = max(FIRST_PAUSE, PAUSE_GROWTH * longest)
        self._may_ask_again = now + seconds + self._retry_after  # a request that comes sooner may be older
        return seconds
