"""One pass over a list of batches through a backend, the way the service runs it: worker threads that pull.

No HTTP, no tokenizer, no batching decisions: what is measured here is what the engine could give the service.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from service.inference.backend import Backend, Batch


@dataclass(frozen=True, slots=True)
class Pass:
    """One run over all batches.

    Attributes:
        seconds: from the first batch's start to the last one's end.
        tokens: real tokens in all batches.
        texts: rows in all batches.
        latencies: seconds of each `run`, in no particular order.
        cpu_seconds: processor time of this process meanwhile.
    """

    seconds: float
    tokens: int
    texts: int
    latencies: list[float]
    cpu_seconds: float | None = None

    @property
    def tokens_per_s(self) -> float:
        """Real tokens a second, padding not counted."""
        return self.tokens / self.seconds

    @property
    def texts_per_s(self) -> float:
        """Rows a second."""
        return self.texts / self.seconds


def run_pass(backend: Backend, batches: Sequence[Batch], workers: int) -> Pass:
    """Runs every batch once, in order, on `workers` threads that take the next one when they are free."""
    pending, latencies = deque(batches), list[float]()
    failures: list[Exception] = []

    def work() -> None:
        while True:
            try:
                batch = pending.popleft()
            except IndexError:
                return
            began = time.perf_counter()
            try:
                backend.run(batch)
            except Exception as error:  # the caller's thread raises it
                failures.append(error)
                return
            latencies.append(time.perf_counter() - began)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    began, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        pending.clear()  # after Ctrl-C the threads end with what they are at
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - used
    if failures:
        raise failures[0]
    return Pass(
        seconds,
        sum(int(batch.lengths.sum()) for batch in batches),
        sum(len(batch.lengths) for batch in batches),
        latencies,
        cpu_seconds,
    )
