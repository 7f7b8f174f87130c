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
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

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


class QueuedRequest:
    """A request as the queue sees it. The batcher's own class derives from it."""

    __slots__ = ("arrived", "order", "tag", "tokens")

    def __init__(self) -> None:
        self.tag = 0.0  # virtual time up to which it was served
        self.order = 0  # of arrival
        self.tokens = 0  # of its texts in the queue
        self.arrived = 0.0  # seconds of the caller's clock


R = TypeVar("R", bound=QueuedRequest)


class QueuedText(Generic[R]):
    """One text of a request: its place there, its tokens (at least 1), and the attention layers it wants."""

    __slots__ = ("index", "layers", "length", "request", "tag")

    def __init__(self, request: R, index: int, length: int, layers: tuple[int, ...] = ()) -> None:
        self.request = request
        self.index = index
        self.length = length
        self.layers = layers  # only texts that want the same run together
        self.tag = 0.0  # virtual time at which it would start if the texts of its request ran in order


Line = list[tuple[float, int, QueuedText[R]]]
"""Texts of one length and one choice of layers, sorted: by tag, then by their requests' order."""


class JobQueue(Generic[R]):
    """Texts of many requests, and the rule by which they leave. Every operation finds a text's place by bisection."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.texts = 0
        self.tokens = 0
        self._virtual_time = 0.0
        self._orders = itertools.count()
        self._turns: list[tuple[float, int, R]] = []  # sorted: by tag, then by order
        self._requests: dict[R, dict[QueuedText[R], None]] = {}  # a request's texts, in their order
        self._lines: dict[tuple[tuple[int, ...], int], Line[R]] = {}  # by layers and length; none is empty
        # Waiting requests and their tokens, by bits of their tokens; the first class, of none, has no use.
        self._class_requests = [0] * _SIZE_CLASSES
        self._class_tokens = [0] * _SIZE_CLASSES

    def add(self, request: R, texts: Iterable[QueuedText[R]], now: float) -> None:
        """Takes in a new request: its texts in order, at least one."""
        request.arrived = now
        request.order = next(self._orders)
        request.tag = tag = self._virtual_time
        insort(self._turns, (tag, request.order, request))
        own = self._requests[request] = dict.fromkeys(texts)
        for text in own:
            text.tag = tag
            tag += text.length
            insort(self._lines.setdefault((text.layers, text.length), []), (text.tag, request.order, text))
        self._count(request, len(own), sum(text.length for text in own))

    def remove(self, request: R) -> None:
        """Drops what is left of a request; nothing where nothing is."""
        for text in reversed(list(self._requests.get(request, ()))):  # the last are at the lines' ends: nothing moves
            self._take_out(text)

    def take(self, share: int) -> list[QueuedText[R]]:
        """The next batch, within the limits and with at most `share` tokens; empty where nothing waits."""
        if not self._turns:
            return []
        waiting, (tag, _, request) = len(self._turns), self._turns[0]
        self._virtual_time = max(self._virtual_time, tag)
        batch = self._fill(next(iter(self._requests[request])), share)
        for text in batch:
            self._charge(text)
        self._virtual_time += sum(text.length for text in batch) / waiting
        return batch

    def ahead_of(self, tokens: int) -> int:
        """Tokens that run before a new request of this many has all of its own: a fair share of each other request.

        Constant time, since every request asks for it, under overload most of all. Exact where `tokens` is a power of
        two. Else the requests of as many bits are taken together, so the sum may come out too high, by 21 % at most.
        """
        bits = tokens.bit_length()
        smaller, larger = sum(self._class_tokens[:bits]), sum(self._class_requests[bits + 1 :])
        return smaller + min(self._class_tokens[bits], tokens * self._class_requests[bits]) + tokens * larger

    def requests(self) -> list[R]:
        """Every request with texts in the queue."""
        return list(self._requests)

    def oldest_age(self, now: float) -> float:
        """Seconds that the oldest request in the queue has been there; 0 for an empty queue."""
        return now - next(iter(self._requests)).arrived if self._requests else 0.0

    def _fill(self, head: QueuedText[R], share: int) -> list[QueuedText[R]]:
        """Takes `head` and what fits beside it, smallest tag first; a length that no longer fits is passed over."""
        limits, batch = self.limits, [head]
        padding = limits.max_padding if share < limits.max_tokens else min(limits.max_padding, limits.max_full_padding)
        self._take_out(head)
        longest = total = head.length
        candidates = self._candidates(head, 1 - padding)
        while candidates:
            _, _, text, line = candidates[0]
            new_longest, new_total = max(longest, text.length), total + text.length
            padded = (len(batch) + 1) * new_longest
            fits = (
                new_total <= share
                and padded <= limits.max_tokens
                and padded - new_total <= padding * padded
                and padded * new_longest * len(head.layers) <= limits.max_pairs
            )
            if fits:
                longest, total = new_longest, new_total
                batch.append(text)
                self._take_out(text)
            if fits and line:
                heapq.heapreplace(candidates, (*line[0], line))
            else:
                heapq.heappop(candidates)
        return batch

    def _candidates(self, head: QueuedText[R], keep: float) -> list[tuple[float, int, QueuedText[R], Line[R]]]:
        """A heap of the first text of every length that may share a batch with `head`."""
        longest = min(math.floor(head.length / keep), self.limits.max_tokens // 2)
        lengths = range(math.ceil(head.length * keep), longest + 1)
        lines = [line for length in lengths if (line := self._lines.get((head.layers, length)))]
        candidates = [(*line[0], line) for line in lines]
        heapq.heapify(candidates)
        return candidates

    def _take_out(self, text: QueuedText[R]) -> None:
        request, place = text.request, (text.layers, text.length)
        own, line = self._requests[request], self._lines[place]
        del own[text], line[bisect_left(line, (text.tag, request.order))]
        if not line:
            del self._lines[place]
        if not own:
            del self._requests[request], self._turns[self._turn_of(request)]
        self._count(request, -1, -text.length)

    def _charge(self, text: QueuedText[R]) -> None:
        """Moves the next turn of a text's request on by its tokens."""
        request = text.request
        if request in self._requests:
            del self._turns[self._turn_of(request)]
            insort(self._turns, (request.tag + text.length, request.order, request))
        request.tag += text.length

    def _turn_of(self, request: R) -> int:
        return bisect_left(self._turns, (request.tag, request.order))

    def _count(self, request: R, texts: int, tokens: int) -> None:
        """Counts texts of a request that came, or, negative, that left."""
        before, after = request.tokens, request.tokens + tokens
        old, new = before.bit_length(), after.bit_length()
        self._class_requests[old] -= 1
        self._class_tokens[old] -= before
        self._class_requests[new] += 1
        self._class_tokens[new] += after
        request.tokens = after
        self.texts += texts
        self.tokens += tokens
