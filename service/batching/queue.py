"""The queue: which texts run next, and which of them run together.

A plain data structure for one thread at a time; the batcher locks around it. It knows lengths, never tokens.

Which text is next: fair queueing between requests. Every request carries a tag, the virtual time up to which it was
served. The request with the smallest tag has the next turn, and every token run for it moves its tag on. Virtual time
itself moves by the tokens run divided by the requests that wait for them, as in weighted fair queueing (Demers, Keshav
and Shenker 1989), and never stays behind the tag in service, as in start-time fair queueing (Goyal, Vin and Cheng
1996). The second rule alone would starve a large request beside an endless stream of one-text requests: every request
is new here, and all of them would get the same tag while virtual time stands still. With both rules every request has
its turn after a bounded number of tokens, so nothing has to look at how long a request has waited.

What runs with it: texts of equal or nearly equal length that want the same attention layers, in the order of the tags
they were given on arrival, while the padded batch stays within its limits.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

_STALE_ALLOWED = 32  # records of what left the queue that a heap may still hold, besides as many as of what is in it
_SIZE_CLASSES = 64  # one for every number of bits that a request's tokens may have


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLimits:
    """What may run together. A text over a limit runs alone.

    Attributes:
        max_tokens: padded tokens of a batch, B * S.
        max_padding: share of padded tokens that may be padding, at least 0 and below 1.
        max_pairs: attention weights of a batch a head, B * S * S * wanted layers; bounds the memory of the answer.
        max_full_padding: as `max_padding`, where so much waits that every worker can have a full batch: texts of like
            length abound then.
    """

    max_tokens: int
    max_padding: float
    max_pairs: int
    max_full_padding: float = 1.0

    def padding(self, share: int) -> float:
        """The share of padding that a batch of at most `share` tokens may have."""
        return self.max_padding if share < self.max_tokens else min(self.max_padding, self.max_full_padding)


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
        """The queued text of the smallest tag; None if none is left."""
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


class RequestSizes:
    """Answers in constant time what a sum over all waiting requests would answer. One thread at a time."""

    def __init__(self) -> None:
        # By bits of their tokens; the first class, of requests without any, has no use.
        self._requests = [0] * _SIZE_CLASSES
        self._tokens = [0] * _SIZE_CLASSES

    def change(self, before: int, after: int) -> None:
        """Notes that a request which had `before` tokens in the queue now has `after`; 0 is a request not there."""
        old, new = before.bit_length(), after.bit_length()
        self._requests[old] -= 1
        self._tokens[old] -= before
        self._requests[new] += 1
        self._tokens[new] += after

    def tokens_up_to(self, limit: int) -> int:
        """The tokens of all requests, with at most `limit` counted of each.

        Exact where `limit` is a power of two. Else the requests of as many bits as `limit` are taken together, so the
        sum may come out too high, by 21 % at most.
        """
        bits = limit.bit_length()
        smaller, larger = sum(self._tokens[:bits]), sum(self._requests[bits + 1 :])
        return smaller + min(self._tokens[bits], limit * self._requests[bits]) + limit * larger


class JobQueue(Generic[R]):
    """Texts of many requests, and the rule by which they leave. O(log n) a text, whatever the operation.

    Attributes:
        limits: what may run together.
        texts: texts in the queue.
        tokens: their tokens.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.texts = 0
        self.tokens = 0
        self._virtual_time = 0.0
        self._sequence = itertools.count()
        self._turns: list[tuple[float, int, R]] = []  # heap; a record's tag may be older than its request's
        self._requests: dict[R, deque[QueuedText[R]]] = {}  # a request's texts in order; may hold taken ones
        self._sizes = RequestSizes()
        self._by_length: TextsByLength[R] = TextsByLength()

    def add(self, request: R, texts: Iterable[QueuedText[R]], now: float) -> None:
        """Takes in a new request: its texts in order, at least one."""
        self._forget_turns()
        request.arrived = now
        request.tag = tag = self._virtual_time
        heapq.heappush(self._turns, (tag, next(self._sequence), request))
        own = self._requests[request] = deque(texts)
        for text in own:
            text.tag = tag
            tag += text.length
            text.queued = True
            self._by_length.add(text)
        self._count(request, len(own), sum(text.length for text in own))

    def remove(self, request: R) -> None:
        """Drops what is left of a request; nothing where nothing is."""
        for text in self._requests.get(request, ()):
            if text.queued:
                self._discard(text)

    def take(self, share: int) -> list[QueuedText[R]]:
        """The next batch, within the limits and with at most `share` tokens; empty where nothing waits."""
        waiting = len(self._requests)
        if not waiting:
            return []
        batch = self._fill(self._pop_first(self._next_request()), share)
        for text in batch:
            text.request.tag += text.length
        self._virtual_time += sum(text.length for text in batch) / waiting
        return batch

    def ahead_of(self, tokens: int) -> int:
        """Tokens that run before a new request of this many has all of its own: a fair share of each other request.

        Constant time, since every request asks for it, under overload most of all. See `RequestSizes` for how exact.
        """
        return self._sizes.tokens_up_to(tokens)

    def requests(self) -> list[R]:
        """Every request with texts in the queue."""
        return list(self._requests)

    def oldest_age(self, now: float) -> float:
        """Seconds that the oldest request in the queue has been there; 0 for an empty queue. O(requests)."""
        return max((now - request.arrived for request in self._requests), default=0.0)

    def _next_request(self) -> R:
        """The request with the smallest tag. Records of requests that left or were served since are dealt with here."""
        while True:
            tag, sequence, request = self._turns[0]
            if not request.texts:
                heapq.heappop(self._turns)
            elif tag != request.tag:
                heapq.heapreplace(self._turns, (request.tag, sequence, request))
            else:
                self._virtual_time = max(self._virtual_time, tag)
                return request

    def _pop_first(self, request: R) -> QueuedText[R]:
        own = self._requests[request]
        while not own[0].queued:
            own.popleft()
        text = own.popleft()
        self._discard(text)
        return text

    def _fill(self, head: QueuedText[R], share: int) -> list[QueuedText[R]]:
        """Adds to `head` what fits beside it, smallest tag first; a length that no longer fits is passed over."""
        batch = [head]
        longest = total = head.length
        padding = self.limits.padding(share)
        candidates = self._candidates(head, padding)
        while candidates:
            _, _, text, bucket = candidates[0]
            new_longest, new_total = max(longest, text.length), total + text.length
            padded = (len(batch) + 1) * new_longest
            fits = (
                new_total <= share
                and padded <= self.limits.max_tokens
                and padded - new_total <= padding * padded
                and padded * new_longest * len(head.layers) <= self.limits.max_pairs
            )
            if not fits:
                heapq.heappop(candidates)
                continue
            longest, total = new_longest, new_total
            batch.append(text)
            self._discard(text)
            if (top := bucket.top()) is not None:
                heapq.heapreplace(candidates, (*top, bucket))
            else:
                heapq.heappop(candidates)
        return batch

    def _candidates(
        self, head: QueuedText[R], padding: float
    ) -> list[tuple[float, int, QueuedText[R], LengthBucket[R]]]:
        """A heap of the first text of every length that may share a batch with `head`."""
        if 2 * head.length > self.limits.max_tokens:
            return []
        keep = 1 - padding
        near = self._by_length.between(head.layers, math.ceil(head.length * keep), math.floor(head.length / keep))
        candidates = [(*top, bucket) for bucket in near if (top := bucket.top())]
        heapq.heapify(candidates)
        return candidates

    def _discard(self, text: QueuedText[R]) -> None:
        text.queued = False
        self._count(text.request, -1, -text.length)
        self._by_length.discard(text)
        if not text.request.texts:
            del self._requests[text.request]

    def _count(self, request: R, texts: int, tokens: int) -> None:
        self._sizes.change(request.tokens, request.tokens + tokens)
        request.texts += texts
        request.tokens += tokens
        self.texts += texts
        self.tokens += tokens

    def _forget_turns(self) -> None:
        """Drops the turns of requests that left, once they are most of the heap (otherwise they leave one by one)."""
        if len(self._turns) > 2 * len(self._requests) + _STALE_ALLOWED:
            self._turns = [record for record in self._turns if record[2].texts]
            heapq.heapify(self._turns)
