"""A limit on the tokens in the queue, for callers that wait for space instead of being refused."""

import asyncio
from collections import deque


class TokenSemaphore:
    """A semaphore that counts tokens. Callers that find no space wait, and are served in order. For one event loop."""

    def __init__(self, tokens: int) -> None:
        self._limit = tokens
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, tokens: int) -> None:
        """Waits until there is space; more tokens than the limit wait until no others are held."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((tokens, turn))
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            self.release(0 if turn.cancelled() else tokens)  # it may have been granted without having run since
            raise

    def release(self, tokens: int) -> None:
        """Gives tokens back, for others."""
        self._held -= tokens
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            tokens, turn = self._waiting[0]
            if not turn.done():  # a cancelled caller's turn is passed over
                if self._held and self._held + tokens > self._limit:
                    return
                self._held += tokens
                turn.set_result(None)
            self._waiting.popleft()
