"""What waits in the queue: texts as entries of a request, found by their length.

It knows lengths, never tokens, and nothing of turns or batches.
"""

import heapq
import itertools
from typing import Generic, TypeVar

_STALE_ALLOWED = 32  # records without an entry that a heap may hold, besides as many as it has live ones


class Flow:
    """A request as the queue sees it. The batcher's own derives from it.

    Attributes:
        tag: virtual time up to which it was served.
        texts: its entries in the queue.
        tokens: their tokens.
        arrived: when it came, in seconds of the caller's clock.
        served: when something was last run for it, or when it came.
    """

    __slots__ = ("arrived", "served", "tag", "texts", "tokens")

    def __init__(self) -> None:
        self.tag = 0.0
        self.texts = 0
        self.tokens = 0
        self.arrived = 0.0
        self.served = 0.0


F = TypeVar("F", bound=Flow)


class Entry(Generic[F]):
    """One text.

    Attributes:
        flow: the request it belongs to.
        index: its place in the request.
        length: tokens, at least 1.
        layers: attention layers it wants; only texts that want the same run together.
        tag: virtual time at which it would start, were its request served in order.
        queued: whether it is in the queue.
    """

    __slots__ = ("flow", "index", "layers", "length", "queued", "tag")

    def __init__(self, flow: F, index: int, length: int, layers: tuple[int, ...] = ()) -> None:
        self.flow = flow
        self.index = index
        self.length = length
        self.layers = layers
        self.tag = 0.0
        self.queued = False


Record = tuple[float, int, Entry[F]]
"""An entry in a heap: its tag, a number that settles ties, itself."""


class Bucket(Generic[F]):
    """Entries of one length and one choice of layers, by tag. One that left the queue is dropped when it surfaces."""

    __slots__ = ("_heap", "live")

    def __init__(self) -> None:
        self._heap: list[Record[F]] = []
        self.live = 0

    def push(self, record: Record[F]) -> None:
        """Adds an entry."""
        heapq.heappush(self._heap, record)
        self.live += 1

    def top(self) -> Record[F] | None:
        """The queued entry of the smallest tag; None where none is left."""
        while self._heap:
            if self._heap[0][2].queued:
                return self._heap[0]
            heapq.heappop(self._heap)
        return None

    def forget_one(self) -> None:
        """Counts out an entry that left the queue; rebuilds the heap once most of it is such entries."""
        self.live -= 1
        if len(self._heap) > 2 * self.live + _STALE_ALLOWED:
            self._heap = [record for record in self._heap if record[2].queued]
            heapq.heapify(self._heap)


class EntriesByLength(Generic[F]):
    """Every queued entry, in buckets that exist only while they hold one."""

    def __init__(self) -> None:
        self._sequence = itertools.count()
        self._buckets: dict[tuple[int, ...], dict[int, Bucket[F]]] = {}

    def add(self, entry: Entry[F]) -> None:
        """Puts an entry in its bucket."""
        buckets = self._buckets.setdefault(entry.layers, {})
        bucket = buckets.get(entry.length)
        if bucket is None:
            bucket = buckets[entry.length] = Bucket()
        bucket.push((entry.tag, next(self._sequence), entry))

    def discard(self, entry: Entry[F]) -> None:
        """Takes out an entry that is no longer `queued`."""
        buckets = self._buckets[entry.layers]
        bucket = buckets[entry.length]
        bucket.forget_one()
        if not bucket.live:
            del buckets[entry.length]
            if not buckets:
                del self._buckets[entry.layers]

    def between(self, layers: tuple[int, ...], shortest: int, longest: int) -> list[Bucket[F]]:
        """The buckets of one choice of layers whose length lies in `[shortest, longest]`."""
        buckets = self._buckets.get(layers, {})
        if longest - shortest < len(buckets):
            return [bucket for length in range(shortest, longest + 1) if (bucket := buckets.get(length))]
        return [bucket for length, bucket in buckets.items() if shortest <= length <= longest]
