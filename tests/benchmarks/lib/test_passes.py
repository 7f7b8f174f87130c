import threading
import time

import numpy as np
import pytest

from benchmarks.lib.passes import run_pass
from benchmarks.lib.tokens import make_batch
from service.inference.backend import Batch, BatchOutput


class Sleeper:
    """A backend that takes its time and notes who called."""

    def __init__(self, seconds: float = 0.0, fail_at: int | None = None) -> None:
        self.seconds = seconds
        self.fail_at = fail_at
        self.threads: set[int] = set()
        self.lengths: list[int] = []

    def run(self, batch: Batch) -> BatchOutput:
        self.threads.add(threading.get_ident())
        self.lengths.append(int(batch.lengths[0]))
        if len(self.lengths) == self.fail_at:
            raise ValueError("no more")
        time.sleep(self.seconds)
        return BatchOutput(np.zeros((len(batch.lengths), 4), dtype=np.float32), None, {})

    def close(self) -> None:
        pass


def test_a_pass_counts_texts_and_real_tokens_and_times_every_run() -> None:
    batches = [make_batch([[1, 2, 3], [4]]), make_batch([[5]]), make_batch([[6, 7]])]
    backend = Sleeper(0.05)
    one = run_pass(backend, batches, workers=1)
    assert (one.texts, one.tokens) == (4, 7)
    assert backend.lengths == [3, 1, 2]
    assert len(one.latencies) == 3
    assert min(one.latencies) >= 0.05
    assert one.seconds >= 0.15
    assert one.tokens_per_s == pytest.approx(7 / one.seconds)
    assert one.texts_per_s == pytest.approx(4 / one.seconds)


def test_workers_share_the_batches() -> None:
    backend = Sleeper(0.05)
    one = run_pass(backend, [make_batch([[1]])] * 8, workers=4)
    assert len(backend.threads) == 4
    assert one.seconds < 0.05 * 8 * 0.75
    assert len(one.latencies) == 8


def test_a_failure_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="no more"):
        run_pass(Sleeper(fail_at=2), [make_batch([[1]])] * 4, workers=1)
