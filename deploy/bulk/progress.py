"""How far a run is, told by the actors that encode: one line on the terminal, and a summary at the end."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tqdm import tqdm

STDOUT, STDERR = 1, 2
INTERVAL = 0.5  # seconds between two looks
FAILURES_MOST = 1000  # ids that are kept; the count goes on


@dataclass(slots=True)
class Counts:
    """What was done so far.

    Attributes:
        rows: that went through an actor; those of a node that died count again.
        without_text: of them, those that have no text.
        failed: of them, those whose text the model could not encode.
        failed_ids: the ids of the first of these.
    """

    rows: int = 0
    without_text: int = 0
    failed: int = 0
    failed_ids: list[Any] = field(default_factory=list)


@ray.remote(num_cpus=0, max_restarts=-1)
class Tally:
    """Adds up what the actors report."""

    def __init__(self) -> None:
        self._counts = Counts()

    def add(self, rows: int, without_text: int, failed_ids: Sequence[Any]) -> None:
        """Takes in one table."""
        counts = self._counts
        counts.rows += rows
        counts.without_text += without_text
        counts.failed += len(failed_ids)
        counts.failed_ids += failed_ids[: FAILURES_MOST - len(counts.failed_ids)]

    def read(self) -> Counts:
        """All so far."""
        return self._counts


def start_tally() -> Any:
    """A tally on this process's own node: counts would be lost with any other."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Tally.options(scheduling_strategy=here).remote()  # type: ignore[attr-defined]  # Ray publishes no types


@contextmanager
def quiet(log: Path) -> Iterator[TextIO]:
    """Sends to a file what anybody prints, until the block ends: Ray's own lines, from C++ and of other nodes as well.

    Yields:
        What was standard error.
    """
    kept = {number: os.dup(number) for number in (STDOUT, STDERR)}
    with log.open("ab") as file, os.fdopen(os.dup(STDERR), "w", encoding="utf-8") as terminal:
        _redirect(dict.fromkeys(kept, file.fileno()))
        try:
            yield terminal
        finally:
            _redirect(kept)
            for number in kept.values():
                os.close(number)


def _redirect(targets: Mapping[int, int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for number, target in targets.items():
        os.dup2(target, number)


@contextmanager
def shown(tally: Any, rows: int, terminal: TextIO) -> Iterator[None]:
    """Draws the line until the block ends; only on a terminal.

    Args:
        tally: the actor.
        rows: to do.
        terminal: where to.
    """
    over, is_whole = threading.Event(), threading.Event()

    def draw() -> None:
        with tqdm(total=rows, desc="encoding", unit=" rows", unit_scale=True, file=terminal, disable=None) as bar:
            while not over.wait(INTERVAL):
                bar.update(min(ray.get(tally.read.remote()).rows, rows) - bar.n)
            if is_whole.is_set():
                bar.update(rows - bar.n)  # since the last look

    thread = threading.Thread(target=draw, name="progress")
    thread.start()
    try:
        yield
        is_whole.set()
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures, as it is written beside the output.

    Attributes:
        rows: in the output.
        encoded: texts encoded by this run.
        seconds: what it took, reading and writing included.
        texts_per_second: of them.
        without_text: rows without a text, whose embedding is null.
        failed: rows whose text the model could not encode, whose embedding is null.
        failed_ids: the ids of the first thousand of these.
    """

    rows: int
    encoded: int
    seconds: float
    texts_per_second: float
    without_text: int
    failed: int
    failed_ids: list[Any]

    @classmethod
    def of(cls, counts: Counts, rows: int, began: float) -> "Summary":
        """The summary of what the actors counted; `began` by `time.monotonic()`."""
        seconds = time.monotonic() - began
        encoded = counts.rows - counts.without_text - counts.failed
        rate = round(encoded / seconds, 1)
        return cls(rows, encoded, round(seconds, 1), rate, counts.without_text, counts.failed, counts.failed_ids)

    def to_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self)

    def __str__(self) -> str:
        text = f"{self.rows} rows; {self.encoded} texts encoded in {self.seconds} s ({self.texts_per_second} texts/s)"
        if self.without_text:
            text += f"; {self.without_text} rows without text"
        if self.failed:
            text += f"; {self.failed} rows failed, the first: {', '.join(map(str, self.failed_ids[:5]))}"
        return text
