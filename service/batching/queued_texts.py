"""What waits in the queue: the texts of requests, found by their length.

It knows lengths, never tokens. It does not decide which text runs next.
"""

import heapq
import itertools
from typing import Generic, TypeVar

_STALE_ALLOWED = 32  # removed texts that a heap may still hold, besides as many as it has queued ones


class QueuedRequest:
    """A request as the queue sees it. The batcher's own class derives from it.

    Attributes:
        tag: virtual time up to which it was served.
        texts: how many of its texts are in the queue.
        tokens: their tokens.
        arrived: when it came, in seconds of the caller's clock.
    """

    __slots__ = ("arrived", "tag", "texts", "tokens")

    def __init__(self) -> None:
        self.tag = 0.0
        self.texts = 0
        self.tokens = 0
        self.arrived = 0.0


R = TypeVar("R", bound=QueuedRequest)


class QueuedText(Generic[R]):
    """One text of a request.

    Attributes:
        request: the request it belongs to.
        index: its place in the request.
        length: tokens, at least 1.
        layers: attention layers it wants; only texts that want the same run together.
        tag: virtual time at which it would start if the texts of its request ran in order.
        queued: whether it is in the queue.
    """

    __slots__ = ("index", "layers", "length", "queued", "request", "tag")

    def __init__(self, request: R, index: int, length: int, layers: tuple[int, ...] = ()) -> None:
        self.request = request
        self.index = index
        self.length = length
        self.layers = layers
        self.tag = 0.0
        self.queued = False


Record = tuple[float, int, QueuedText[R]]
"""A text in a heap: its tag, a number that settles ties, itself."""


class LengthBucket(Generic[R]):
    """Texts of one length and one choice of layers, by tag. A text that left the queue is dropped when it surfaces."""

    __slots__ = ("_heap", "queued")

    def __init__(self) -> None:
        self._heap: list[Record[R]] = []
        self.queued = 0

    def push(self, record: Record[R]) -> None:
        """Adds a text."""
        heapq.heappush(self._heap, record)
        self.queued += 1

    def top(self) -> Record[R] | None:
        """The queued text of the smallest tag; None where none is left."""
        while self._heap:
            if self._heap[0][2].queued:
                return self._heap[0]
            heapq.heappop(self._heap)
        return None

    def count_out(self) -> None:
        """Counts out a text that left the queue; rebuilds the heap once most of it is such texts."""
        self.queued -= 1
        if len(self._heap) > 2 * self.queued + _STALE_ALLOWED:
            self._heap = [record for record in self._heap if record[2].queued]
            heapq.heapify(self._heap)


class TextsByLength(Generic[R]):
    """Every queued text, in buckets that exist only while they hold one."""

    def __init__(self) -> None:
        self._sequence = itertools.count()
        self._buckets: dict[tuple[int, ...], dict[int, LengthBucket[R]]] = {}

    def add(self, text: QueuedText[R]) -> None:
        """Puts a text in its bucket."""
        buckets = self._buckets.setdefault(text.layers, {})
        bucket = buckets.get(text.length)
        if bucket is None:
            bucket = buckets[text.length] = LengthBucket()
        bucket.push((text.tag, next(self._sequence), text))

    def discard(self, text: QueuedText[R]) -> None:
        """Takes out a text that is no longer `queued`."""
        buckets = self._buckets[text.layers]
        bucket = buckets[text.length]
        bucket.count_out()
        if not bucket.queued:
            del buckets[text.length]
            if not buckets:
                del self._buckets[text.layers]

    def between(self, layers: tuple[int, ...], shortest: int, longest: int) -> list[LengthBucket[R]]:
        """The buckets of one choice of layers whose length lies in `[shortest, longest]`."""
        buckets = self._buckets.get(layers, {})
        if longest - shortest < len(buckets):
            return [bucket for length in range(shortest, longest + 1) if (bucket := buckets.get(length))]
        return [bucket for length, bucket in buckets.items() if shortest <= length <= longest]
