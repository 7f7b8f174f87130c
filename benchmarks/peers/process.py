"""This side of a peer that encodes in a process of its own: starts it, gives it its task, has it measure.

The other side is `benchmarks.peers.worker`.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.command import CannotMeasure, last_line
from benchmarks.lib.comparison import Sample, Way
from benchmarks.peers.worker import Task

QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}


class PeerFailed(CannotMeasure):
    """The peer's process ended; the message holds the last line that it wrote."""


@dataclass(frozen=True, slots=True)
class PeerProcess:
    """A peer that has its task.

    Attributes:
        process: with a line of JSON each way.
        log: its standard error.
        names: what it can measure.
        texts: number of texts of one measurement.
        tokens: their tokens.
    """

    process: subprocess.Popen[str]
    log: IO[bytes]
    names: list[str]
    texts: int
    tokens: int

    def ways(self, prefix: str) -> dict[str, Way]:
        """Everything it can measure, each under the peer's name."""
        return {f"{prefix} {name}": partial(self._measure, name) for name in self.names}

    def vectors(self, count: int = 4) -> NDArray[np.float32]:
        """Vectors `[count, D]` of the first texts."""
        return np.array(_exchange(self.process, self.log, count), dtype=np.float32)

    def cpu_seconds(self, name: str) -> float:
        """Processor seconds of one way, once."""
        return float(_exchange(self.process, self.log, name)["cpu_seconds"])

    def _measure(self, name: str) -> Sample:
        answer = _exchange(self.process, self.log, name)
        seconds = answer["seconds"]
        cpu_us = 1e6 * answer["cpu_seconds"] / self.tokens
        return Sample(self.tokens / seconds, self.texts / seconds, answer["latencies"], cpu_us_a_token=cpu_us)


@contextmanager
def start_worker(python: Path, module: str, task: Task) -> Iterator[PeerProcess]:
    """Runs a peer's worker until the block ends.

    Raises:
        PeerFailed: it ended before it was ready.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 - an interpreter that this project made, and its own module
            [str(python), "-m", module],
            env={**os.environ, **QUIET},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            names = _exchange(process, log, asdict(task))
            yield PeerProcess(process, log, names, len(task.texts), sum(map(len, task.rows)))
        finally:
            process.kill()
            process.communicate()


def _exchange(process: subprocess.Popen[str], log: IO[bytes], question: object) -> Any:
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
    try:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if not answer:
        log.seek(0)
        raise PeerFailed(last_line(log.read().decode(errors="replace"), "it ended without a word")[-2000:])
    return json.loads(answer)
