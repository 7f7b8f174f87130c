"""The process that a peer encodes in: runs in the peer's own environment and encodes when told to.

Standard library and numpy only, so that it can be imported there. One JSON object a line in both directions: first the
task, then the name of a way, answered with seconds; or places of texts, answered with their vectors.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import IO, TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")
Plan = Sequence[Sequence[int]]  # indices of the texts in each run


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is to encode.

    Attributes:
        weights: folder of the checkpoint.
        cores: threads in all.
        texts: the texts.
        rows: their token ids, special tokens included.
        plans: which texts go into which run, by name.
        precisions: that the worker offers, in its own words.
        calibration: token ids of other texts, to choose the ranges of int8 by.
        queries: what each text is scored against or compared with, if pairs are.
    """

    weights: str
    cores: int
    texts: Sequence[str]
    rows: Sequence[Sequence[int]]
    plans: Mapping[str, Plan]
    precisions: Sequence[str] = ()
    calibration: Sequence[Sequence[int]] = ()
    queries: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """What a worker offers.

    Attributes:
        ways: encodes all texts once and returns the seconds of every run, by name.
        embed: vectors of some texts, for a check.
    """

    ways: Mapping[str, Callable[[], Sequence[float]]]
    embed: Callable[[Sequence[int]], NDArray[np.float32]]


def pad(task: Task, indices: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids and mask `[B, S]` of some texts, padded on the right."""
    return pad_rows([task.rows[index] for index in indices])


def pad_rows(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids and mask `[B, S]`, padded on the right."""
    input_ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    mask = np.zeros_like(input_ids)
    for index, row in enumerate(rows):
        input_ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return input_ids, mask


def pull(
    run: Callable[[Item], object], items: Sequence[Item], workers: int, prepare: Callable[[], None] | None = None
) -> list[float]:
    """Runs every item once on worker threads that take the next when they are free; returns the seconds of each.

    Args:
        run: encodes one item.
        items: in the order in which they are taken.
        workers: threads.
        prepare: called first on every thread.
    """
    with ThreadPoolExecutor(workers, initializer=prepare) as pool:
        # After Ctrl-C the threads end with what they are at.
        return list(pool.map(lambda item: timed(partial(run, item)), items))


def layouts(cores: int) -> list[tuple[int, int]]:
    """Workers and threads of each: one worker on all cores, and a worker a core."""
    return list(dict.fromkeys([(1, cores), (cores, 1)]))


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def serve(make: Callable[[Task], Peer]) -> None:
    """Reads the task, makes the peer, and answers until the input ends."""
    answers = _claim_stdout()
    peer = make(Task(**json.loads(sys.stdin.readline())))
    _say(answers, list(peer.ways))
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, list):
            _say(answers, peer.embed(request).tolist())
            continue
        began, used = time.perf_counter(), time.process_time()
        latencies = list(peer.ways[request]())
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - used
        _say(answers, {"seconds": seconds, "cpu_seconds": cpu_seconds, "latencies": latencies})


def _claim_stdout() -> IO[str]:
    """Keeps standard output for answers; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _say(answers: IO[str], value: object) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
