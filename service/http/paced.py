"""Paces clients that were refused and ask again at once: their connection is read again after a moment that grows.

The first refusal on a connection holds nothing up: a balancer has other clients behind it. From the second in a row on,
the next request is read up to 0.1, 0.4, 1.6 seconds later, and so on, never later than the `Retry-After` that the
client was given. So who waits for that long itself is never held up. Clients refused together are read again apart:
chance takes up to half of a pause.
"""

import asyncio
import random
from typing import Any

from service.http.early_refusal import EarlyRefusals, path_of
from service.http.protocol import BoundedProtocol
from service.http.request_head import expected_tokens

FIRST_PAUSE = 0.1  # seconds
GROWTH = 4
LEAST_RETRY_AFTER = 1  # seconds; the header has whole ones


class PacedProtocol(BoundedProtocol):
    """One connection whose requests may be refused from their head.

    Args:
        early: refuses.
    """

    def __init__(self, *args: Any, early: EarlyRefusals, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._early = early
        self._is_refused = False  # the request that is being read
        self._refused_tokens = 0  # of the last request, where it was refused
        self._next_pause = 0.0  # seconds
        self._retry_after = 0
        self._may_ask_again = 0.0  # by the loop's clock
        self._pause: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets to read again."""
        super().connection_lost(exc)
        self._count_refused(0)
        if self._pause is not None:
            self._pause.cancel()

    def begin_request(self) -> None:
        """Refuses the request, or has it answered."""
        is_free = self._pause is None and not self.is_answering and not self.requests_waiting
        self._is_refused = is_free and self._early.is_alert and self._refuse_from_head()
        if not self._is_refused:
            super().begin_request()

    def on_message_complete(self) -> None:
        """Behind a refused request, waits before the next one is read."""
        super().on_message_complete()
        if self._is_refused:
            self._is_refused = False
            self._wait_before_next()

    def on_response_complete(self) -> None:
        """Behind a request that was refused on its usual way, waits likewise; any other answer ends the row."""
        super().on_response_complete()
        if not self.connection.was_refused:
            self._next_pause = 0.0
            self._count_refused(0)
        elif not (self.is_answering or self.requests_waiting or self._pause is not None):
            self._retry_after = LEAST_RETRY_AFTER
            self._count_refused(expected_tokens(dict(self.headers)))
            self._wait_before_next()
        self.connection.was_refused = False

    def _refuse_from_head(self) -> bool:
        """Writes a refusal where the queue would refuse; whether it did."""
        path = path_of(self.url)
        if path is None:
            return False
        keeps_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        refusal = self._early.refuse(
            self.parser.get_method().decode("ascii"),
            path,
            self.headers,
            self.server,
            default_headers=self.server_state.default_headers,
            keeps_alive=keeps_alive,
            call_soon=self.loop.call_soon,
        )
        if refusal is None:
            return False
        self._retry_after = refusal.retry_after
        self._count_refused(refusal.tokens)
        self.transport.write(refusal.data)
        if not keeps_alive:
            self.linger_and_close()
        return True

    def _count_refused(self, tokens: int) -> None:
        self._early.count_refused(self._refused_tokens, tokens)
        self._refused_tokens = tokens

    def _wait_before_next(self) -> None:
        now = self.loop.time()
        pause = 0.0 if now >= self._may_ask_again else min(self._next_pause, self._retry_after)
        self._next_pause = max(FIRST_PAUSE, GROWTH * pause)
        self._may_ask_again = now + self._retry_after
        self.start_idle_timer()
        if pause and not self.transport.is_closing():
            self.flow.pause_reading()
            self._pause = self.loop.call_later(pause * random.uniform(0.5, 1), self._read_again)  # noqa: S311 - no secret

    def _read_again(self) -> None:
        self._pause = None
        self._may_ask_again = self.loop.time() + self._retry_after  # what comes sooner may have been sent meanwhile
        self.flow.resume_reading()
