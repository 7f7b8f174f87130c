"""A model of the replicas: requests arrive at random, wait for workers, and are refused where the wait is too long.

Every request has one text of the same length, and the balancer spreads them evenly. What a real service adds, long
texts among short ones and clients that keep a connection, is not in the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from service.observability import metric_names as names

STEP = 0.1  # seconds
TEXT_TOKENS = 35  # of a request; the mean of the corpus that the README's figures were measured with
QUEUE_DELAY = 0.5  # seconds that a request may wait (--max-queue-delay)
PATIENCE = 16  # times its own run that it may wait besides (service/batching/batcher.py)


@dataclass(frozen=True, slots=True)
class Machine:
    """What one replica does.

    Attributes:
        workers: threads that run the model.
        tokens_per_second: of all of them, with many texts waiting: `polyhead tune` measures it.
        run_seconds: what a run costs beside its tokens.
        start_seconds: from a new replica to a ready one, with its image on the node.
        cpu_request: cores.
        cpu_besides: cores that the event loop and tokenising take at full load.
        is_measured: whether its figures were measured; else they are assumed.
    """

    workers: int
    tokens_per_second: float
    run_seconds: float
    start_seconds: float
    cpu_request: float = 2.5
    cpu_besides: float = 0.3
    is_measured: bool = True


CPU = Machine(workers=2, tokens_per_second=11_000, run_seconds=0.0003, start_seconds=15)
"""fp32 on two cores, one text a request (deploy/README.md, Sizing). A start takes 2.5 s, the node takes the rest."""
GPU = Machine(workers=1, tokens_per_second=230_000, run_seconds=0.003, start_seconds=45, is_measured=False)
"""A card that encodes 230,000 tokens a second in full batches, and a start with CUDA."""


@dataclass(slots=True)
class Replica:
    """One replica.

    Attributes:
        number: of its own, and never another's.
        ready_at: seconds.
    """

    number: int
    ready_at: float
    queue: float = 0.0
    busy: float = 0.0
    cpu: float = 0.0
    tokens: float = 0.0

    def metrics(self, machine: Machine) -> Mapping[str, float]:
        """What a scrape finds."""
        return {
            names.QUEUE_TOKENS: self.queue,
            names.WORKER_BUSY: self.busy,
            names.WORKERS: machine.workers,
            names.TOKENS: self.tokens,
        }


@dataclass(frozen=True, slots=True)
class Step:
    """What happened in one step: requests, and the seconds that those which were taken will have waited."""

    arrived: float
    refused: float
    waits: np.ndarray
    taken: np.ndarray


def advance(machine: Machine, ready: list[Replica], arrivals: np.ndarray) -> Step:
    """One step of the ready replicas; `arrivals` are requests to each."""
    rate = machine.tokens_per_second
    queue = np.array([replica.queue for replica in ready])
    capacity = rate * STEP
    longest = (QUEUE_DELAY + PATIENCE * TEXT_TOKENS / rate) * rate
    offered = arrivals * TEXT_TOKENS
    taken = np.minimum(offered, np.maximum(0.0, longest + capacity - queue))
    done = np.minimum(queue + taken, capacity)
    alone = done / TEXT_TOKENS * (machine.run_seconds + TEXT_TOKENS * machine.workers / rate)
    busy = np.minimum(machine.workers * STEP, alone)
    waits = np.maximum(0.0, queue - capacity / 2) / rate + machine.run_seconds + TEXT_TOKENS * machine.workers / rate
    for replica, left, worked, computed in zip(ready, queue + taken - done, busy, done, strict=True):
        replica.queue = float(left)
        replica.busy += float(worked)
        replica.tokens += float(computed)
        replica.cpu += float(worked + machine.cpu_besides * computed / rate)
    refused = float(np.sum(offered - taken)) / TEXT_TOKENS
    return Step(float(np.sum(arrivals)), refused, waits, taken / TEXT_TOKENS)
