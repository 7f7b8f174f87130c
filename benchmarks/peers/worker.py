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
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")
Plan = Sequence[Sequence[int]]  # indices of the texts in each run


class Task(NamedTuple):
    """What a worker is to encode."""

    weights: str  # folder of the checkpoint
    cores: int  # threads in all
    texts: Sequence[str]
    rows: Sequence[Sequence[int]]  # the texts' token ids, special tokens included
    plans: Mapping[str, Plan]
    precision: str = ""  # in the worker's own words
    calibration: Sequence[Sequence[int]] = ()  # token ids of other texts, to choose the ranges of int8 by
    queries: Sequence[str] = ()  # what each text is scored against or compared with, if pairs are


class Peer(NamedTuple):
    """What a worker offers."""

    ways: Mapping[str, Callable[[], Sequence[float]]]  # each encodes all texts once: seconds of every run
    embed: Callable[[Sequence[int]], NDArray[np.float32]]  # vectors of some texts, for a check


def pad_rows(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids and mask `[B, S]`, padded on the right."""
    lengths = np.array([len(row) for row in rows])
    mask = (np.arange(lengths.max()) < lengths[:, np.newaxis]).astype(np.int64)
    input_ids = np.zeros_like(mask)
    input_ids[mask == 1] = np.concatenate([np.asarray(row, np.int64) for row in rows])
    return input_ids, mask


def pull(
    run: Callable[[Item], object], items: Sequence[Item], workers: int, prepare: Callable[[], None] | None = None
) -> list[float]:
    """Runs every item once on worker threads that take the next when they are free; returns the seconds of each.

    `prepare` is called first on every thread.
    """
    with ThreadPoolExecutor(workers, initializer=prepare) as pool:
        # After Ctrl-C the threads end with what they are at.
        return list(pool.map(lambda item: timed(partial(run, item)), items))


def layouts_of(cores: int) -> list[tuple[int, int]]:
    """Workers and threads of each: a worker a core, and one worker on all cores."""
    return list(dict.fromkeys([(cores, 1), (1, cores)]))


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def serve(make: Callable[[Task], Peer]) -> None:
    """Reads the task, makes the peer, and answers until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to standard error

    def say(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    peer = make(Task(**json.loads(sys.stdin.readline())))
    say(list(peer.ways))
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, list):
            say(peer.embed(request).tolist())
            continue
        began, used = time.perf_counter(), time.process_time()
        latencies = list(peer.ways[request]())
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - used
        say({"seconds": seconds, "cpu_seconds": cpu_seconds, "latencies": latencies})
