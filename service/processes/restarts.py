"""When a process that died is started again: at once, then later and later, and at some point not any more."""

MOST_DEATHS = 8  # in a row, of one place
STEADY_SECONDS = 60.0  # of being ready, after which a death is the first of a row again
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 10.0  # seconds; each delay is twice the one before


class Restarts:
    """Counts deaths, each place by itself."""

    def __init__(self) -> None:
        self._deaths: dict[int, int] = {}

    def delay_after_death(self, index: int, was_ready: float | None, now: float) -> float | None:
        """Seconds to wait before the next start; None where it is to be given up.

        Args:
            index: the place of the process that died.
            was_ready: when it had become ready; None where it had not.
            now: by the same clock.
        """
        is_steady = was_ready is not None and now - was_ready >= STEADY_SECONDS
        deaths = self._deaths[index] = 1 if is_steady else self._deaths.get(index, 0) + 1
        if deaths > MOST_DEATHS:
            return None
        return min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (deaths - 1))
