"""What requests wait under a load of three times what the workers can do: a simulation without threads or clocks."""

import heapq
import random
from collections import defaultdict
from collections.abc import Iterator

from service.batching.queue import BatchLimits, JobQueue
from service.batching.queued_texts import QueuedRequest, QueuedText

WORKERS = 2
SECONDS_A_RUN, SECONDS_A_TOKEN = 0.0015, 0.00016
MAX_DELAY, PATIENCE = 0.5, 16  # as the service's defaults: seconds, and times its own run
MIX = {"short": (range(5, 41), 1), "long": (range(100, 257), 1), "large": (range(10, 61), 64)}  # lengths, texts
WEIGHTS = (75, 17, 8)


class SimulatedRequest(QueuedRequest):
    __slots__ = ("kind", "left")

    def __init__(self, kind: str, texts: int) -> None:
        super().__init__()
        self.kind = kind
        self.left = texts


class Overload:
    """Requests that come at random moments, admission as in the batcher, and workers that take from the queue."""

    def __init__(self, seconds: float, load: float) -> None:
        self.chance = random.Random(1)  # noqa: S311 - a simulation that is the same each time
        self.queue: JobQueue[SimulatedRequest] = JobQueue(
            BatchLimits(max_tokens=512, max_padding=0.25, max_pairs=2**19, max_full_padding=0.1)
        )
        mean = sum(sum(self.lengths(kind)) for kind in self.kinds(5000)) / 5000
        rate = load * WORKERS / (SECONDS_A_TOKEN * mean)
        self.waits: dict[str, list[float]] = defaultdict(list)
        self.idle = WORKERS
        self.ends: list[tuple[float, int, list[QueuedText[SimulatedRequest]]]] = []
        self.runs = 0
        now = 0.0
        while now < seconds:
            now += self.chance.expovariate(rate)
            self.work_until(now)
            self.arrive(now)
            self.start_runs(now)

    def kinds(self, count: int) -> Iterator[str]:
        yield from self.chance.choices(list(MIX), WEIGHTS, k=count)

    def lengths(self, kind: str) -> list[int]:
        lengths, texts = MIX[kind]
        return self.chance.choices(lengths, k=texts)

    def arrive(self, now: float) -> None:
        (kind,) = self.kinds(1)
        lengths = self.lengths(kind)
        seconds_a_token = 1.1 * SECONDS_A_TOKEN / WORKERS
        tokens = sum(lengths)
        if seconds_a_token * self.queue.ahead_of(tokens) <= MAX_DELAY + PATIENCE * seconds_a_token * tokens:
            request = SimulatedRequest(kind, len(lengths))
            self.queue.add(request, [QueuedText(request, i, length) for i, length in enumerate(lengths)], now)

    def start_runs(self, now: float) -> None:
        while self.idle and (batch := self.queue.take(-(-self.queue.tokens // WORKERS))):
            self.idle -= 1
            self.runs += 1
            seconds = SECONDS_A_RUN + SECONDS_A_TOKEN * sum(text.length for text in batch)
            heapq.heappush(self.ends, (now + seconds, self.runs, batch))

    def work_until(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            end, _, batch = heapq.heappop(self.ends)
            self.idle += 1
            for text in batch:
                text.request.left -= 1
                if not text.request.left:
                    self.waits[text.request.kind].append(end - text.request.arrived)
            self.start_runs(end)

    def percentile(self, kind: str, share: float) -> float:
        return sorted(self.waits[kind])[int(share * len(self.waits[kind]))]


def test_one_text_waits_little_longer_than_admission_allows() -> None:
    """The smallest tag goes first. If the longest neglected request did, these were 0.73, 0.57 and 0.78 seconds."""
    overload = Overload(seconds=20.0, load=3.0)
    assert overload.percentile("short", 0.99) < 0.66
    assert overload.percentile("long", 0.5) < 0.47
    assert overload.percentile("long", 0.99) < 0.73
    assert len(overload.waits["large"]) > 10, "and the large ones come to an end"
