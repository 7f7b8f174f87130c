"""How several models share the cores: each has its fair part, and what another leaves."""

import asyncio
import threading
import time
from unittest.mock import Mock

import pytest

from service.batching.executor import KEPT_SECONDS, CoreShare, CoreShares
from tests.service.batching.test_batcher import running
from tests.service.fake_backend import FakeBackend, job


def begin(member: CoreShare, times: int) -> None:
    for _ in range(times):
        member.__enter__()


@pytest.mark.parametrize(
    ("cores", "running", "most"),
    [
        (2, [0], [2]),  # alone, or the others idle
        (2, [2, 0], [2, 1]),  # the other may begin one run at once
        (2, [1, 1], [1, 1]),
        (8, [5, 1], [7, 4]),  # what one does not use is the other's
        (8, [3, 2, 1], [5, 5, 4]),
        (2, [1, 0, 0], [2, 1, 1]),
        (1, [1, 0], [1, 1]),
    ],
)
def test_each_has_its_fair_part_and_what_others_leave(cores: int, running: list[int], most: list[int]) -> None:
    shares = CoreShares(cores, Mock(return_value=0.0))
    members = [shares.join() for _ in running]
    for member, times in zip(members, running, strict=True):
        begin(member, times)
    assert [member.most(0.0) for member in members] == most


def test_a_core_is_left_for_a_moment_to_the_model_that_used_it() -> None:
    clock = Mock(return_value=0.0)
    shares = CoreShares(4, clock)
    flooded, other = shares.join(), shares.join()
    with other:
        pass
    assert flooded.most(0.0) == 3
    assert flooded.most(KEPT_SECONDS) == 4
    shares.leave(other)
    assert flooded.most(0.0) == 4


def test_a_worker_waits_until_the_cores_are_left_to_it() -> None:
    clock = Mock(return_value=0.0)
    shares = CoreShares(2, clock)
    flooded, other = shares.join(), shares.join()
    begin(other, 1)
    begin(flooded, 1)
    began = threading.Event()

    def work() -> None:
        with flooded:
            began.set()

    waiting = threading.Thread(target=work, daemon=True)
    waiting.start()
    other.__exit__()
    assert not began.is_set()
    clock.return_value = KEPT_SECONDS
    waiting.join()
    assert began.is_set()


async def test_the_expected_wait_counts_the_cores_that_another_model_uses() -> None:
    shares, backend = CoreShares(2), FakeBackend()
    shares.join().__enter__()  # and never ends: two workers have one core between them
    backend.on_token[1] = lambda: time.sleep(0.01)
    with running(backend, workers=2, max_batch_tokens=1) as batcher:
        batcher.executor.cores = shares.join()
        began = time.monotonic()
        await asyncio.gather(*(batcher.submit([job(1)]) for _ in range(40)))
        expected = batcher.executor.rate.seconds_for(40, workers=2)
        assert expected > 0.7 * (time.monotonic() - began)
