"""The queue: which texts run next, and which of them run together.

A plain data structure for one thread at a time; the batcher locks around it.

Which text is next: fair queueing between requests. Every request carries a tag, the virtual time up to which it was
served; the request with the smallest tag has the next turn, and every token run for it moves its tag on. Virtual time
itself moves by the tokens run divided by the requests that wait for them, as in weighted fair queueing (Demers, Keshav
and Shenker 1989), and never stays behind the tag in service, as in start-time fair queueing (Goyal, Vin and Cheng
1996). The latter's rule alone would not do: every request is a new flow here, and an endless stream of one-text
requests, all tagged with a virtual time that stands still, would starve a large one.

What runs with it: texts of equal or nearly equal length that want the same attention layers, in the order of the tags
they were given on arrival, while the padded batch stays within its limits.
"""

import heapq
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Literal

from service.batching.entries import Bucket, EntriesByLength, Entry, F

SENTENCE_TOKENS = 32
_STALE_ALLOWED = 32  # turns of requests that left, besides as many as there are requests


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLimits:
    """What may run together. A text over a limit runs alone.

    Attributes:
        max_tokens: padded tokens of a batch, B * S.
        max_padding: share of padded tokens that may be padding, at least 0 and below 1.
        max_pairs: attention weights of a batch a head, B * S * S * wanted layers; bounds the memory of the answer.
        max_age: seconds after which a request that nothing was run for goes first, the longest neglected one before
            the others. Counted from its last turn, not its arrival: or a large request, old by nature, would go before
            every small one.
        max_full_padding: as `max_padding`, where so much waits that every worker can have a full batch: mates of like
            length abound then.
    """

    max_tokens: int
    max_padding: float
    max_pairs: int
    max_age: float
    max_full_padding: float = 1.0

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.max_pairs < 1:
            raise ValueError(f"max_tokens and max_pairs are {self.max_tokens}, {self.max_pairs}: expected at least 1")
        if not 0 <= self.max_padding < 1:
            raise ValueError(f"max_padding is {self.max_padding}: expected at least 0 and less than 1")
        if not self.max_age >= 0:
            raise ValueError(f"max_age is {self.max_age}: expected seconds, at least 0")

    def padding(self, share: int) -> float:
        """The share of padding that a batch may have which may hold `share` tokens."""
        return self.max_padding if share < self.max_tokens else min(self.max_padding, self.max_full_padding)


class JobQueue(Generic[F]):
    """Texts of many requests, and the rule by which they leave. O(log n) a text, whatever the operation.

    Attributes:
        limits: what may run together.
        texts: entries in the queue.
        tokens: their tokens.
        ahead_of_sentence: `ahead_of(SENTENCE_TOKENS)`, kept up to date: under overload every request asks for it.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.texts = 0
        self.tokens = 0
        self.ahead_of_sentence = 0
        self._virtual_time = 0.0
        self._sequence = itertools.count()
        self._turns: list[tuple[float, int, F]] = []  # heap; a record's tag may be older than its flow's
        self._flows: OrderedDict[F, deque[Entry[F]]] = OrderedDict()  # longest neglected first; may hold taken entries
        self._entries: EntriesByLength[F] = EntriesByLength()

    def add(self, flow: F, entries: Iterable[Entry[F]], now: float) -> None:
        """Takes in a new request: its entries in order, at least one."""
        self._forget_turns()
        flow.arrived = flow.served = now
        flow.tag = tag = self._virtual_time
        heapq.heappush(self._turns, (tag, next(self._sequence), flow))
        own = self._flows[flow] = deque(entries)
        for entry in own:
            entry.tag = tag
            tag += entry.length
            self._insert(entry)

    def put_back(self, entries: Iterable[Entry[F]], now: float) -> None:
        """Returns entries that were taken and never run to the front of their requests."""
        for entry in reversed(list(entries)):
            flow = entry.flow
            if flow not in self._flows:
                flow.served = now
                self._flows[flow] = deque()
            flow.tag -= entry.length
            heapq.heappush(self._turns, (flow.tag, next(self._sequence), flow))
            self._flows[flow].appendleft(entry)
            self._insert(entry)

    def remove(self, flow: F) -> None:
        """Drops what is left of a request; nothing where nothing is."""
        for entry in self._flows.get(flow, ()):
            if entry.queued:
                self._discard(entry)

    def take(self, now: float, share: int) -> list[Entry[F]]:
        """The next batch, within the limits and with at most `share` tokens; empty where nothing waits."""
        waiting = len(self._flows)
        if not waiting:
            return []
        head = self._pop_first(self._next_flow(now))
        batch = self._fill(head, share)
        for entry in batch:
            self._charge(entry, now)
        self._virtual_time += sum(entry.length for entry in batch) / waiting
        return batch

    def ahead_of(self, tokens: int) -> int:
        """Tokens that would run before a new request of so many has all of its own: a fair share of each other request.

        O(requests), and admission keeps those few.
        """
        return sum(min(flow.tokens, tokens) for flow in self._flows)

    def flows(self) -> list[F]:
        """Every request with entries in the queue."""
        return list(self._flows)

    def oldest_age(self, now: float) -> float:
        """Seconds that the oldest request in the queue has been there; 0 for an empty queue. O(requests)."""
        return max((now - flow.arrived for flow in self._flows), default=0.0)

    def _next_flow(self, now: float) -> F:
        """Whose turn it is: the longest neglected flow beyond the age bound, else the smallest tag."""
        neglected = next(iter(self._flows))
        if now - neglected.served > self.limits.max_age:
            return neglected
        while True:
            tag, sequence, flow = self._turns[0]
            if not flow.texts:
                heapq.heappop(self._turns)
            elif tag != flow.tag:
                heapq.heapreplace(self._turns, (flow.tag, sequence, flow))
            else:
                self._virtual_time = max(self._virtual_time, tag)
                return flow

    def _pop_first(self, flow: F) -> Entry[F]:
        own = self._flows[flow]
        while not own[0].queued:
            own.popleft()
        entry = own.popleft()
        self._discard(entry)
        return entry

    def _fill(self, head: Entry[F], share: int) -> list[Entry[F]]:
        """Adds to `head` what fits beside it, smallest tag first; a length that no longer fits is passed over."""
        batch = [head]
        longest = total = head.length
        padding = self.limits.padding(share)
        candidates = self._candidates(head, padding)
        while candidates:
            _, _, entry, bucket = candidates[0]
            new_longest, new_total = max(longest, entry.length), total + entry.length
            padded = (len(batch) + 1) * new_longest
            if new_total > share or not self._fits(padded, new_longest, new_total, len(head.layers), padding):
                heapq.heappop(candidates)
                continue
            longest, total = new_longest, new_total
            batch.append(entry)
            self._discard(entry)
            if (top := bucket.top()) is not None:
                heapq.heapreplace(candidates, (*top, bucket))
            else:
                heapq.heappop(candidates)
        return batch

    def _candidates(self, head: Entry[F], padding: float) -> list[tuple[float, int, Entry[F], Bucket[F]]]:
        """A heap of the first entry of every length that may stand beside `head`."""
        if 2 * head.length > self.limits.max_tokens:
            return []
        keep = 1 - padding
        near = self._entries.between(head.layers, math.ceil(head.length * keep), math.floor(head.length / keep))
        candidates = [(*top, bucket) for bucket in near if (top := bucket.top())]
        heapq.heapify(candidates)
        return candidates

    def _fits(self, padded: int, longest: int, total: int, layers: int, padding: float) -> bool:
        return (
            padded <= self.limits.max_tokens
            and padded - total <= padding * padded
            and padded * longest * layers <= self.limits.max_pairs
        )

    def _insert(self, entry: Entry[F]) -> None:
        entry.queued = True
        self._count(entry, 1)
        self._entries.add(entry)

    def _discard(self, entry: Entry[F]) -> None:
        entry.queued = False
        self._count(entry, -1)
        self._entries.discard(entry)
        if not entry.flow.texts:
            del self._flows[entry.flow]

    def _count(self, entry: Entry[F], sign: Literal[1, -1]) -> None:
        flow, length = entry.flow, sign * entry.length
        self.ahead_of_sentence -= min(flow.tokens, SENTENCE_TOKENS)
        flow.texts += sign
        flow.tokens += length
        self.ahead_of_sentence += min(flow.tokens, SENTENCE_TOKENS)
        self.texts += sign
        self.tokens += length

    def _charge(self, entry: Entry[F], now: float) -> None:
        """Moves the tag of the entry's flow on by what is run for it, and the flow to the end of the line."""
        flow = entry.flow
        flow.tag += entry.length
        flow.served = now
        if flow.texts:
            self._flows.move_to_end(flow)

    def _forget_turns(self) -> None:
        """Drops the turns of requests that left, once they are most of the heap (they go by themselves otherwise)."""
        if len(self._turns) > 2 * len(self._flows) + _STALE_ALLOWED:
            self._turns = [record for record in self._turns if record[2].texts]
            heapq.heapify(self._turns)
