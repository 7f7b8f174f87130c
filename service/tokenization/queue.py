"""The queue of texts that are long enough to hold the event loop; short ones are tokenised on the loop.

It counts characters. Requests take turns, a part of their texts at a time, by the rule of the batcher's queue, and what
would wait too long is refused. It knows no tokenizer.
"""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from service.batching.admission import DrainRate, delay_refusal
from service.batching.queue import BatchLimits, JobQueue, QueuedRequest, QueuedText
from service.errors import DeadlineExceeded, InternalError, NotReady, Overloaded
from service.machine import trim_heap

T = TypeVar("T")

# Up to here a thread hand-off costs more than it frees the event loop for: about a millisecond of tokenising.
INLINE_CHARACTERS = 4096
CLOSED = "closed: no more texts are tokenised"
_ONE_PART = BatchLimits(max_tokens=1, max_padding=0.0, max_pairs=1)  # whatever its size, a part runs alone
# glibc keeps what the library freed, up to 800 bytes a character. It is returned after this many characters, if none
# wait, or after this many seconds. A trim takes some milliseconds.
_TRIM_CHARACTERS, _TRIM_SECONDS = 131_072, 1.0


class Part(NamedTuple):
    """Some texts of a request, tokenised in one go: what that costs, as characters, and the work."""

    characters: int
    tokenize: Callable[[], Any]


class _Request(QueuedRequest):
    """A request that waits for its parts. Guarded by the queue's lock, but for the future, which is its loop's."""

    __slots__ = ("future", "join", "left", "loop", "parts", "results")

    def __init__(self, parts: Sequence[Part], join: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self.parts = parts
        self.join = join
        self.results: list[Any] = [None] * len(parts)
        self.left = len(parts)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[tuple[Any, Exception | None]] = self.loop.create_future()

    def resolve(self, result: Any, error: Exception | None = None) -> None:
        """Tells the event loop its outcome; called on any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: no one waits there any more
            self.loop.call_soon_threadsafe(self._resolve, result, error)

    def _resolve(self, result: Any, error: Exception | None) -> None:
        if not self.future.done():
            self.future.set_result((result, error))


class TokenizerQueue:
    """Tokenises on threads of its own, in fair turns (the tokenizers library frees the GIL for a batch of texts).

    Args:
        threads: how many.
        max_delay: seconds that a request may have to wait, beside 16 times its own work; one that would is refused.
    """

    def __init__(self, threads: int, *, max_delay: float = math.inf) -> None:
        self._num_threads = threads
        self._max_delay = max_delay
        self._lock = threading.Lock()
        self._queue: JobQueue[_Request] = JobQueue(_ONE_PART)
        self._rate = DrainRate()
        self._is_closed = False
        self._trimmed_at, self._done_since_trim = time.monotonic(), 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenize")

    @property
    def characters(self) -> int:
        """Characters that wait for a thread."""
        return self._queue.tokens

    async def run(
        self, parts: Sequence[Part], join: Callable[[list[Any]], T], deadline: float | None, *, joined: int = 0
    ) -> T:
        """Does the work of all parts of a request.

        Args:
            parts: each of at least one character.
            join: makes the answer of what the parts gave, in their order; called on a thread too.
            deadline: `time.monotonic()` value after which no one waits any more; what is left is dropped then.
            joined: characters that `join` works through, if they are more than the characters of the parts: one text
                may be in many rows.

        Raises:
            Overloaded: the expected wait is too long; `retry_after` says when it will not be.
            DeadlineExceeded: the deadline passed.
            NotReady: closed.
            Exception: what the work raised; InternalError if the library panicked.
        """
        seconds = None if deadline is None else deadline - time.monotonic()
        if seconds is not None and seconds <= 0:
            raise DeadlineExceeded()
        if max(joined, sum(part.characters for part in parts)) <= INLINE_CHARACTERS:
            return join([without_panic(part.tokenize) for part in parts])
        request = _Request(parts, join)
        try:
            self._add(request, seconds)
            async with asyncio.timeout(seconds):
                result, error = await request.future
        except TimeoutError:
            raise DeadlineExceeded() from None
        finally:
            with self._lock:
                self._queue.remove(request)
                request.parts, request.results = (), []  # the queue knows it until the next ones have their turn
        if error is None:
            answer: T = result
            return answer
        try:
            raise error
        finally:
            del error  # it holds this frame, and so the texts, until a collection of garbage finds them

    def early_refusal(self, characters: int) -> Overloaded | None:
        """Why a request of this many characters, which no one has read yet, would be refused; None if it would not."""
        if characters <= INLINE_CHARACTERS:
            return None
        with self._lock:
            return self._refusal(characters, math.inf)

    def close(self) -> None:
        """Ends the threads without waiting for them; waiting texts fail."""
        with self._lock:
            self._is_closed = True
            waiting = self._queue.requests()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for request in waiting:
            request.resolve(None, NotReady(CLOSED))

    def _add(self, request: _Request, seconds: float | None) -> None:
        texts = [QueuedText(request, index, part.characters) for index, part in enumerate(request.parts)]
        total = sum(text.length for text in texts)
        with self._lock:
            if self._is_closed:
                raise NotReady(CLOSED)
            refusal = self._refusal(total, math.inf if seconds is None else seconds)
            if refusal is None:
                self._queue.add(request, texts, time.monotonic())
                for _ in texts:
                    self._pool.submit(self._take_turn)
                return
        try:
            raise refusal
        finally:
            del refusal  # as above

    def _refusal(self, characters: int, time_left: float) -> Overloaded | None:
        return delay_refusal(
            self._rate,
            characters,
            ahead=self._queue.ahead_of(characters),
            workers=self._num_threads,
            max_delay=self._max_delay,
            time_left=time_left,
        )

    def _take_turn(self) -> None:
        """Does the part whose turn it is, on a thread of the pool; nothing if its request has left."""
        with self._lock:
            if not (taken := self._queue.take(1)):
                return
            (text,) = taken
            request, part = text.request, text.request.parts[text.index]
        started = time.monotonic()
        try:
            result = without_panic(part.tokenize)
            if self._note(text, result, time.monotonic() - started):
                request.resolve(request.join(request.results))
        except BaseException as error:
            with self._lock:
                self._queue.remove(request)
            request.resolve(None, error if isinstance(error, Exception) else InternalError())
        del request, part, text, taken
        if self._should_trim():
            trim_heap()

    def _should_trim(self) -> bool:
        now = time.monotonic()
        with self._lock:
            if self._done_since_trim < _TRIM_CHARACTERS:
                return False
            if self._queue.texts and now - self._trimmed_at < _TRIM_SECONDS:
                return False
            self._trimmed_at, self._done_since_trim = now, 0
            return True

    def _note(self, text: QueuedText[_Request], result: Any, seconds: float) -> bool:
        """Takes in what a part gave; returns whether it was its request's last one."""
        request = text.request
        with self._lock:
            self._rate.add(text.length, seconds)
            self._done_since_trim += text.length
            if not request.results:
                return False  # no one waits for it any more
            request.results[text.index] = result
            request.left -= 1
            return not request.left


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
