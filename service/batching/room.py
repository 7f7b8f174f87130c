"""Room in the queue, for callers that wait for it instead of being refused."""

import asyncio
from collections import deque


class Room:
    """How many tokens may be in the queue; who comes when it is full waits, in order. For one event loop."""

    def __init__(self, tokens: int) -> None:
        self._limit = tokens
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, tokens: int) -> None:
        """Waits until there is room; a run that alone is too large waits until nothing else is there."""
        place = (tokens, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        self._let_in()
        try:
            await place[1]
        except asyncio.CancelledError:
            self.give_back(0 if place[1].cancelled() else tokens)  # it may have been let in and not know yet
            raise

    def give_back(self, tokens: int, _of: object = None) -> None:
        """Makes room for others."""
        self._taken -= tokens
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            tokens, place = self._waiting[0]
            if not place.done():  # else its call was given up
                if self._taken and self._taken + tokens > self._limit:
                    return
                self._taken += tokens
                place.set_result(None)
            self._waiting.popleft()
