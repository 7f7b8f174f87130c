"""How fast the workers drain the queue, and so when a refused request may try again."""

_DECAY = 0.98  # weight of the past at every batch: about fifty batches, under a second of one loaded core
_UNKNOWN = 1.0  # seconds to wait before anything was measured
_MAX_RATIO = 16  # to the usual length of a run; one that takes longer was held up and says nothing about others
_MIN_RETRY, _MAX_RETRY = 0.1, 60.0  # seconds; sooner the queue is still full, beyond a minute nobody knows


class DrainRate:
    """Tokens a second of busy time, smoothed over the last batches. One thread at a time."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._runs = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Counts a finished batch: real tokens, and how long it ran on its worker.

        A run that was held up (a stopped process, a machine out of memory) counts as 16 times the usual length: in full
        it alone would have requests refused for hundreds of batches. If all runs have become slow, the usual length
        grows with each.
        """
        if self._seconds:
            usual = max(self._seconds / self._runs, self.seconds_for(tokens, workers=1))
            seconds = min(seconds, _MAX_RATIO * usual)
        self._tokens = self._tokens * _DECAY + tokens
        self._seconds = self._seconds * _DECAY + seconds
        self._runs = self._runs * _DECAY + 1

    def seconds_for(self, tokens: int, workers: int) -> float:
        """Seconds in which that many workers drain that many tokens; 0 before the first batch."""
        return tokens * self._seconds / (self._tokens * workers) if self._tokens else 0.0

    def retry_after(self, tokens: int, workers: int) -> float:
        """Seconds after which a client should try again: as above, between 0.1 and 60, and 1 before the first batch."""
        if not self._tokens:
            return _UNKNOWN
        return min(_MAX_RETRY, max(_MIN_RETRY, self.seconds_for(tokens, workers)))
