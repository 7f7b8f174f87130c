"""The event loop on which an engine's calls wait: on a thread of its own, so that callers need none."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from service.errors import NotReady

STOP_SECONDS = 30.0

T = TypeVar("T")


class CallLoop:
    """Runs coroutines for callers on any thread. The loop starts with the first call."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._process = os.getpid()

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked from the one that made it."""
        return os.getpid() == self._process

    def result(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a call returns, once it has.

        Raises:
            NotReady: closed, of another process, or called from a call's `progress`, which this loop waits for.
        """
        if threading.current_thread() is self._thread:
            raise NotReady("`progress` is called on the engine's own thread: call the engine from another one")
        running = self._start(call)
        try:
            return running.result()
        except CancelledError:
            raise NotReady("the engine was closed") from None
        except BaseException:  # Ctrl-C: no one waits for the rest
            running.cancel()
            raise

    async def awaited(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `result`, on the caller's own event loop; a call whose caller is cancelled is cancelled too."""
        return await asyncio.wrap_future(self._start(call))

    def refuse_more(self) -> None:
        """Takes no more calls; those that run go on."""
        with self._starting:
            self._is_closed = True

    def stop(self) -> None:
        """Ends the loop after the calls that were started."""
        with self._starting:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            if self._thread is not threading.current_thread():  # as of a `progress` that closes the engine
                self._thread.join(STOP_SECONDS)  # it is a caller's `progress` that may take forever

    def _start(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        if not self.is_of_this_process:  # a call would wait forever for threads that stayed behind
            raise NotReady("the engine was loaded before a fork, and its threads are the parent's: load it here")
        with self._starting:  # `stop` ends the loop after calls that began before
            if self._is_closed:
                raise NotReady("the engine is closed")
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run_loop, args=(loop,), name="engine", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the system starts no more
                    loop.close()
                    raise
                self._loop = loop
            return asyncio.run_coroutine_threadsafe(self._told_of_closing(call), self._loop)

    async def _told_of_closing(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a call returns; queues know only of a process that ends, and advise another one."""
        try:
            return await call()
        except NotReady:
            if self._is_closed:
                raise NotReady("the engine was closed") from None
            raise


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    with ThreadPoolExecutor(thread_name_prefix="engine") as threads:  # the loop would need one more to end its own
        loop.set_default_executor(threads)
        loop.run_forever()
        if left := asyncio.all_tasks(loop):  # none is cancelled: one may hold its results, the others find all closed
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()
