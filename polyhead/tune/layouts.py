"""Ways to use the cores, what each of them gave, and which to take."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NOISE = 0.03  # two runs of one layout differ by as much: among those so near, the one with fewest processes is taken


@dataclass(frozen=True, slots=True)
class Layout:
    """A use of the cores.

    Attributes:
        processes: processes that serve, each with a model of its own.
        workers: threads of each process that run the model.
        intra_op_threads: threads inside one run.
    """

    processes: int
    workers: int
    intra_op_threads: int

    @property
    def variables(self) -> dict[str, str]:
        """The settings that make it, as environment variables."""
        return {
            "POLYHEAD_PROCESSES": str(self.processes),
            "POLYHEAD_WORKERS": str(self.workers),
            "POLYHEAD_INTRA_OP_THREADS": str(self.intra_op_threads),
        }


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a layout gave.

    Attributes:
        layout: the layout.
        texts_per_second: with many requests of one text under way.
        tokens_per_second: likewise.
        latency_p50: median seconds of a request that comes alone.
        latency_p95: 95th percentile of the same.
        client_share: share of a core that the client took while many requests were under way; near 1, the client was
            what held up.
    """

    layout: Layout
    texts_per_second: float
    tokens_per_second: float
    latency_p50: float
    latency_p95: float
    client_share: float


def layouts(cores: int) -> list[Layout]:
    """Every way to give all cores to equal processes with equal workers, from the fewest processes on."""
    return [
        Layout(processes, cores // processes // threads, threads)
        for processes in _divisors(cores)
        for threads in _divisors(cores // processes)
    ]


def most_throughput(measured: Sequence[Measurement]) -> Layout:
    """The layout of the most texts a second; the one with the fewest processes where others are as good."""
    best = max(one.texts_per_second for one in measured)
    return _simplest(one.layout for one in measured if one.texts_per_second >= best * (1 - NOISE))


def least_latency(measured: Sequence[Measurement]) -> Layout:
    """The layout that answers a request that comes alone soonest; likewise."""
    best = min(one.latency_p50 for one in measured)
    return _simplest(one.layout for one in measured if one.latency_p50 <= best * (1 + NOISE))


def _simplest(found: Iterable[Layout]) -> Layout:
    return min(found, key=lambda layout: (layout.processes, layout.intra_op_threads))


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
