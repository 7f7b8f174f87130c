"""The order in which texts leave the queue, and who is refused."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from service.batching.admission import DrainRate
from service.batching.queue import BatchLimits, JobQueue, QueuedRequest, QueuedText

LAYERS = st.sampled_from([(), (), (0, 5)])
LENGTHS = st.sampled_from([5, 8, 9, 10, 20])  # few, so that they meet; near ones, so that they pad
TEXTS = st.lists(st.tuples(LENGTHS, LAYERS), min_size=1, max_size=8)
LIMITS = st.builds(
    BatchLimits,
    max_tokens=st.integers(1, 100),
    max_padding=st.sampled_from([0.0, 0.1, 0.25, 0.5]),
    max_full_padding=st.sampled_from([0.1, 1.0]),
    max_pairs=st.sampled_from([50, 500, 10**6]),
)


def add(
    queue: JobQueue[QueuedRequest], lengths: list[int], *, layers: tuple[int, ...] = (), now: float = 0.0
) -> QueuedRequest:
    request = QueuedRequest()
    queue.add(request, [QueuedText(request, index, length, layers) for index, length in enumerate(lengths)], now)
    return request


class QueueAgainstDefinition(RuleBasedStateMachine):
    """The queue compared with its definition by brute force: lists, scanned from end to end at every step."""

    @initialize(limits=LIMITS)
    def begin(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.queue: JobQueue[QueuedRequest] = JobQueue(limits)
        self.now = 0.0
        self.virtual_time = 0.0
        self.line: list[QueuedRequest] = []  # order of arrival
        self.arrived: dict[QueuedRequest, float] = {}
        self.tag: dict[QueuedRequest, float] = {}
        self.waiting: list[QueuedText[QueuedRequest]] = []  # order of arrival

    @rule(texts=TEXTS)
    def add(self, texts: list[tuple[int, tuple[int, ...]]]) -> None:
        request = QueuedRequest()
        queued = [QueuedText(request, index, length, layers) for index, (length, layers) in enumerate(texts)]
        self.queue.add(request, queued, self.now)
        self.line.append(request)
        self.arrived[request] = self.now
        self.tag[request] = self.virtual_time
        self.waiting += queued

    @rule(seconds=st.sampled_from([0.5, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(choice=st.integers(0, 100))
    def remove(self, choice: int) -> None:
        if self.line:
            request = self.line.pop(choice % len(self.line))
            self.queue.remove(request)
            self.waiting = [text for text in self.waiting if text.request is not request]

    @rule(share=st.integers(1, 120))
    def take(self, share: int) -> None:
        assert self.queue.take(share) == self.expected_batch(share)

    @invariant()
    def counts_agree(self) -> None:
        assert self.queue.texts == len(self.waiting)
        assert self.queue.tokens == sum(text.length for text in self.waiting)
        waiting: Counter[QueuedRequest] = Counter()
        for text in self.waiting:
            waiting[text.request] += text.length
        for tokens in (1, 5, 8, 20, 32, 100):
            ahead = sum(min(tokens, own) for own in waiting.values())
            assert ahead <= self.queue.ahead_of(tokens) <= (1 if tokens in {1, 8, 32} else 1.21) * ahead
        assert self.queue.requests() == self.line
        oldest = min((self.arrived[request] for request in self.line), default=self.now)
        assert self.queue.oldest_age(self.now) == self.now - oldest

    def expected_batch(self, share: int) -> list[QueuedText[QueuedRequest]]:
        if not self.line:
            return []
        request, requests = self.next_request(), len(self.line)
        batch = [next(text for text in self.waiting if text.request is request)]
        rest = sorted((e for e in self.waiting if e is not batch[0]), key=lambda text: text.tag)  # stable: by arrival
        closed: set[int] = set()
        for text in rest:
            if text.layers != batch[0].layers or text.length in closed:
                continue
            if self.fits([*batch, text], share):
                batch.append(text)
            else:
                closed.add(text.length)
        for text in batch:
            self.charge(text)
        self.virtual_time += sum(text.length for text in batch) / requests
        return batch

    def next_request(self) -> QueuedRequest:
        request = min(self.line, key=lambda request: self.tag[request])  # the first of them
        self.virtual_time = max(self.virtual_time, self.tag[request])
        return request

    def fits(self, batch: list[QueuedText[QueuedRequest]], share: int) -> bool:
        head, longest = batch[0].length, max(text.length for text in batch)
        padding = self.limits.max_padding
        if share >= self.limits.max_tokens:
            padding = min(padding, self.limits.max_full_padding)
        keep = 1 - padding
        padded, tokens = len(batch) * longest, sum(text.length for text in batch)
        return (
            all(head * keep <= text.length <= head / keep for text in batch)
            and tokens <= share
            and padded <= self.limits.max_tokens
            and padded - tokens <= padding * padded
            and padded * longest * len(batch[0].layers) <= self.limits.max_pairs
        )

    def charge(self, text: QueuedText[QueuedRequest]) -> None:
        self.waiting.remove(text)
        self.tag[text.request] += text.length
        if all(other.request is not text.request for other in self.waiting):
            self.line.remove(text.request)


TestQueueAgainstDefinition = QueueAgainstDefinition.TestCase
TestQueueAgainstDefinition.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def grow(texts: int) -> None:
    """A queue's life at a size: many requests come, half of them leave, batches of mixed lengths are taken."""
    queue: JobQueue[QueuedRequest] = JobQueue(BatchLimits(max_tokens=256, max_padding=0.1, max_pairs=10**9))
    requests = [add(queue, [1 + (7 * i + j) % 200 for j in range(10)], now=i / 100) for i in range(texts // 10)]
    for request in requests[::2]:
        queue.remove(request)
    while queue.take(256):
        pass


@contextmanager
def counted_lines() -> Iterator[Callable[[], int]]:
    """Counts executed Python lines: a measure of work that no other process disturbs."""
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: lines
    finally:
        sys.settrace(before)


def test_work_grows_with_the_texts_not_with_their_square() -> None:
    with counted_lines() as lines:
        grow(500)
        small = lines()
        grow(4000)
        large = lines() - small
    assert large < 8 * 1.5 * small, f"{small} lines for 500 texts, {large} for 4000"


def test_a_text_that_runs_alone_looks_for_no_others() -> None:
    queue: JobQueue[QueuedRequest] = JobQueue(BatchLimits(max_tokens=256, max_padding=0.25, max_pairs=10**9))
    add(queue, [100_000, 100_000], now=0.0)
    with counted_lines() as lines:
        assert len(queue.take(256)) == 1
        assert lines() < 200


@pytest.mark.parametrize(
    ("runs", "tokens", "workers", "seconds", "within"),
    [
        ([(100, 0.1)] * 5, 5000, 1, 5.0, 1e-6),  # 1000 tokens a second a worker
        ([(100, 0.1)] * 5, 5000, 2, 2.5, 1e-6),
        ([(1, 0.001), (999, 0.999)], 1000, 1, 1.0, 1e-6),  # weighed by their time, not by their number
        ([(100, 0.1)] * 1000 + [(100, 1.0)] * 200, 1000, 1, 10.0, 0.05),  # the machine became slower
        ([(100, 0.1)] * 1000 + [(100, 10.0)] * 50, 1000, 1, 100.0, 0.4),  # a hundred times
        ([(100, 0.1)] * 100 + [(100, 60.0), (100, 0.1)], 1000, 1, 1.0, 0.5),  # one run was held up
        ([(16_000, 0.02), (5, 0.005)] * 500, 16_005, 1, 0.025, 0.02),  # as on a GPU: milliseconds whatever is in a run
        ([], 10**9, 1, 0.0, 0.0),
        ([(1, 0.001), (1000, 1.0)], 1000, 32, 1 / 32, 0.01),  # usual for its length, though longer than the others
    ],
)
def test_the_rate_follows_what_runs_took(
    runs: list[tuple[int, float]], tokens: int, workers: int, seconds: float, within: float
) -> None:
    assert measured(runs, workers).seconds_for(tokens) == pytest.approx(seconds, rel=within)


def measured(runs: list[tuple[int, float]], workers: int = 1) -> DrainRate:
    rate = DrainRate(workers)
    for tokens, seconds in runs:
        rate.add(tokens, seconds)
    return rate


@pytest.mark.parametrize(
    ("runs", "seconds"), [([], 1.0), ([(1, 10.0)], 60.0), ([(1000, 0.0)], 0.1), ([(10**9, 5.0)], 5.0)]
)
def test_when_to_come_again_is_bounded(runs: list[tuple[int, float]], seconds: float) -> None:
    assert measured(runs).retry_after(10**9) == pytest.approx(seconds)
