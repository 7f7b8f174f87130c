"""How fast the workers drain the queue, and so when a refused request may try again."""

_MEMORY = 0.98  # weight of the past at every batch: about fifty batches, under a second of one loaded core
_UNKNOWN = 1.0  # seconds to wait before anything was measured
_MOST_TIMES = 16  # what is usual: a run that takes longer was held up, and says nothing of those to come
_LEAST, _MOST = 0.1, 60.0  # a client that comes back sooner only finds the queue full; beyond a minute is a guess


class DrainRate:
    """Tokens a second of busy time, smoothed over the last batches. One thread at a time."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._runs = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Counts a finished batch: real tokens, and how long it ran on its worker.

        One that was held up (a stopped process, a machine out of memory) counts as a slow one, or it alone would have
        requests refused for hundreds of batches. Where all became slow, each makes more time usual.
        """
        if self._seconds:
            usual = max(self._seconds / self._runs, self.seconds_for(tokens, workers=1))
            seconds = min(seconds, _MOST_TIMES * usual)
        self._tokens = self._tokens * _MEMORY + tokens
        self._seconds = self._seconds * _MEMORY + seconds
        self._runs = self._runs * _MEMORY + 1

    def seconds_for(self, tokens: int, workers: int) -> float:
        """Seconds in which that many workers drain that many tokens; 0 before the first batch."""
        return tokens * self._seconds / (self._tokens * workers) if self._tokens else 0.0

    def retry_after(self, tokens: int, workers: int) -> float:
        """The same as advice to a client: between 0.1 and 60, and 1 before the first batch."""
        if not self._tokens:
            return _UNKNOWN
        return min(_MOST, max(_LEAST, self.seconds_for(tokens, workers)))
