"""How fast threads drain a queue, and so who may enter it; others are told when to try again."""

import math

from service.errors import Overloaded, ServiceError

CLOSED = "this process no longer takes work; another one may"
_DECAY = 0.98  # weight of the past at every batch: about fifty batches, under a second of one loaded core
_UNKNOWN = 1.0  # seconds to wait before anything was measured
_MAX_RATIO = 16  # to the usual length of a run; one that takes longer was held up and says nothing about others
_PATIENCE = 16  # a request may also wait for this many times its own run: sixteen equal clients are no overload
_MIN_RETRY, _MAX_RETRY = 0.1, 60.0  # seconds; sooner the queue is still full, beyond a minute no estimate holds


class DrainRate:
    """Tokens a second of workers that have enough to do, smoothed over the last batches. One thread at a time.

    Args:
        workers: that drain the queue.
        max_delay: seconds that any request may have to wait, beside 16 times its own run.
    """

    def __init__(self, workers: int, max_delay: float = math.inf) -> None:
        self.workers = workers
        self._max_delay = max_delay
        self._tokens = 0.0
        self._seconds = 0.0
        self._runs = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Counts a finished batch: real tokens, and how long its worker had nothing else to do.

        A run that was held up (a stopped process, a machine out of memory) counts as 16 times the usual length: in full
        it alone would have requests refused for hundreds of batches. If all runs have become slow, the usual length
        grows with each.
        """
        if self._seconds:
            usual = max(self._seconds / self._runs, self.seconds_for(tokens) * self.workers)
            seconds = min(seconds, _MAX_RATIO * usual)
        self._tokens = self._tokens * _DECAY + tokens
        self._seconds = self._seconds * _DECAY + seconds
        self._runs = self._runs * _DECAY + 1

    def seconds_for(self, tokens: int) -> float:
        """Seconds in which the workers drain that many tokens; 0 before the first batch."""
        return tokens * self._seconds / (self._tokens * self.workers) if self._tokens else 0.0

    def retry_after(self, tokens: int) -> float:
        """Seconds after which a client should try again: as above, between 0.1 and 60, and 1 before the first batch."""
        if not self._tokens:
            return _UNKNOWN
        return min(_MAX_RETRY, max(_MIN_RETRY, self.seconds_for(tokens)))

    def refusal(self, tokens: int, *, ahead: int, time_left: float = math.inf, again: int = 0) -> Overloaded | None:
        """Refuses what would wait long: a full queue makes every answer late.

        A large request takes long anyway, so it may wait in proportion: it has its share of the workers meanwhile.

        Args:
            tokens: of the request.
            ahead: tokens that run before it has all of its own.
            time_left: seconds to its deadline; one whose turn would come later is refused.
            again: tokens of others that were refused and come again, on which it has to wait too if it is refused.
        """
        delay = self.seconds_for(ahead)
        patience = min(self._max_delay + _PATIENCE * self.seconds_for(tokens), time_left)
        if not delay or delay <= patience:  # with nothing ahead it is tried: only a run shows how fast runs are by now
            return None
        excess = round(ahead * (delay - patience) / delay)
        retry_after = self.retry_after(excess + again)
        return Overloaded(f"the expected wait is {delay:.2f} s; try again later", retry_after=retry_after)


def refuse(error: ServiceError | None) -> None:
    """Raises a refusal if there is one. No frame keeps it: it would hold that frame until garbage is collected."""
    try:
        if error is not None:
            raise error
    finally:
        del error
