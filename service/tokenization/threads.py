"""Threads for what would hold the event loop: long texts are tokenised there, short ones where they are."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from service.errors import DeadlineExceeded, InternalError, NotReady

T = TypeVar("T")

# Up to here a thread hand-off costs more than it frees the event loop for: about a millisecond of tokenising.
INLINE_CHARACTERS = 4096


class TokenizerThreads:
    """Runs what costs more than handing it over on threads of its own (the tokenizers library frees the GIL).

    Raises:
        RuntimeError: the system gives no thread.
    """

    def __init__(self, threads: int) -> None:
        self._pool = _started_pool(threads)
        self._is_closed = False

    async def run(self, tokenize: Callable[[], T], characters: int, deadline: float | None) -> T:
        """What `tokenize` returns.

        Args:
            tokenize: the work.
            characters: what it costs, as characters to tokenise.
            deadline: `time.monotonic()` value after which nobody waits any more.

        Raises:
            InternalError: the library panicked.
            NotReady: closed.
            DeadlineExceeded: the deadline passed; what no thread had begun with is dropped.
        """
        seconds = None if deadline is None else deadline - time.monotonic()
        if seconds is not None and seconds <= 0:
            raise DeadlineExceeded()
        if characters <= INLINE_CHARACTERS:
            return without_panic(tokenize)
        try:
            tokenized = asyncio.get_running_loop().run_in_executor(self._pool, without_panic, tokenize)
        except RuntimeError:
            if not self._is_closed:
                raise
            raise NotReady("closed: no more texts are tokenised") from None
        try:
            async with asyncio.timeout(seconds):
                return await tokenized
        except TimeoutError:
            raise DeadlineExceeded() from None

    def close(self) -> None:
        """Ends the threads without waiting for them."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)


def without_panic(tokenize: Callable[[], T]) -> T:
    """Calls the tokenizers library.

    Raises:
        InternalError: its Rust code panicked. What the panic says may quote the text, so it is not shown.
    """
    try:
        return tokenize()
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as panic:  # a panic is no Exception
        raise InternalError() from panic


def _started_pool(threads: int) -> ThreadPoolExecutor:
    """A pool whose threads are all there. One that starts them later keeps the texts for which the system gave none.

    Raises:
        RuntimeError: the system gives no thread.
    """
    pool, everyone = ThreadPoolExecutor(threads, thread_name_prefix="tokenize"), threading.Barrier(threads)
    try:
        for _ in range(threads):
            pool.submit(everyone.wait)  # before all are there none is free, so each of these starts one
    except RuntimeError:
        everyone.abort()
        pool.shutdown(wait=False)
        raise
    return pool
