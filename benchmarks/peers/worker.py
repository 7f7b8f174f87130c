"""The process that a peer encodes in: runs in the peer's own environment and encodes when told to.

Standard library and numpy only, so that it can be imported there. One line of JSON in both directions: first the task,
answered with the names of all ways; then the name of a way, answered with a `Pass`, or places of texts, answered with
their vectors.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

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


class Loaded(NamedTuple):
    """An engine that is ready to encode in one layout; each plan is a way, named by kind, plan and layout."""

    kind: str
    layout: tuple[int, int]  # workers, and threads of each
    make_batch: Callable[[Sequence[int]], Any]  # of texts, by their places
    run: Callable[[Any], NDArray[np.float32]]  # a batch to one vector a text
    prepare: Callable[[], None] | None = None  # called first on every worker thread
    plans: Mapping[str, Plan] | None = None  # instead of the task's


class Pass(NamedTuple):
    """What it took to run all batches once."""

    seconds: float
    cpu_seconds: float  # of all threads
    latencies: Sequence[float]  # seconds of each run


def pad_rows(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids and mask `[B, S]`, padded on the right."""
    lengths = np.array([len(row) for row in rows])
    mask = (np.arange(lengths.max()) < lengths[:, np.newaxis]).astype(np.int64)
    input_ids = np.zeros_like(mask)
    input_ids[mask == 1] = np.concatenate([np.asarray(row, np.int64) for row in rows])
    return input_ids, mask


def pull(
    run: Callable[[Item], object], items: Sequence[Item], workers: int, prepare: Callable[[], None] | None = None
) -> Pass:
    """Runs every item once, in order, on worker threads that take the next one when they are free; one is the caller.

    `prepare` is called first on each of them. After Ctrl-C they end with what they are at.
    """

    def timed(item: Item) -> float:
        began = time.perf_counter()
        run(item)
        return time.perf_counter() - began

    began, used = time.perf_counter(), time.process_time()
    if workers == 1:  # PyTorch makes new threads for each thread that calls it
        if prepare:
            prepare()
        latencies = [timed(item) for item in items]
    else:
        with ThreadPoolExecutor(workers, initializer=prepare) as pool:
            latencies = list(pool.map(timed, items))
    return Pass(time.perf_counter() - began, time.process_time() - used, latencies)


def layouts_of(cores: int) -> list[tuple[int, int]]:
    """Workers and threads of each: a worker a core, and one worker on all cores."""
    return list(dict.fromkeys([(cores, 1), (1, cores)]))


def serve(load: Callable[[Task], Iterable[Loaded]]) -> None:
    """Reads the task, loads the engine in every layout, and answers until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to standard error

    def say(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    task = Task(**json.loads(sys.stdin.readline()))
    layouts = list(load(task))
    ways = {
        f"{one.kind}, {name}, {one.layout[0]}x{one.layout[1]}": partial(
            pull, one.run, [one.make_batch(part) for part in plan], one.layout[0], one.prepare
        )
        for one in layouts
        for name, plan in (task.plans if one.plans is None else one.plans).items()
    }
    say(list(ways))
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, list):
            vectors = [layouts[0].run(layouts[0].make_batch([place])) for place in request]
            say(np.concatenate(vectors).tolist())
        else:
            say(ways[request]())
