import asyncio

import pytest

from service.batching.admission import DrainRate, TokenSemaphore


def measured(batches: list[tuple[int, float]]) -> DrainRate:
    rate = DrainRate()
    for tokens, seconds in batches:
        rate.add(tokens, seconds)
    return rate


def test_divides_the_work_by_what_all_workers_drain() -> None:
    rate = measured([(100, 0.1)] * 5)  # 1000 tokens a second a worker
    assert rate.retry_after(5000, workers=1) == pytest.approx(5.0)
    assert rate.retry_after(5000, workers=2) == pytest.approx(2.5)


def test_follows_a_machine_that_became_slower() -> None:
    rate = measured([(100, 0.1)] * 1000 + [(100, 1.0)] * 200)
    assert rate.retry_after(1000, workers=1) == pytest.approx(10.0, rel=0.05)


def test_a_run_that_was_held_up_is_not_taken_for_the_rate() -> None:
    rate = measured([(100, 0.1)] * 100 + [(100, 60.0), (100, 0.1)])
    assert rate.seconds_for(1000, workers=1) < 1.5


def test_follows_a_machine_that_became_a_hundred_times_slower() -> None:
    rate = measured([(100, 0.1)] * 1000 + [(100, 10.0)] * 50)
    assert rate.seconds_for(1000, workers=1) == pytest.approx(100.0, rel=0.4)


def test_a_run_of_few_tokens_counts_whole_beside_large_ones() -> None:
    rate = measured([(16_000, 0.02), (5, 0.005)] * 500)  # as on a GPU, where a run takes milliseconds whatever is in it
    assert rate.seconds_for(16_005, workers=1) == pytest.approx(0.025, rel=0.02)


def test_weighs_batches_by_their_time_not_by_their_number() -> None:
    rate = measured([(1, 0.001), (999, 0.999)])
    assert rate.retry_after(1000, workers=1) == pytest.approx(1.0)


def test_is_bounded_and_says_a_second_where_nothing_is_known() -> None:
    assert measured([]).retry_after(10**9, workers=1) == 1.0
    assert measured([]).seconds_for(10**9, workers=1) == 0.0
    assert measured([(1, 10.0)]).retry_after(10**9, workers=1) == 60.0
    assert measured([(1000, 0.0)]).retry_after(10**9, workers=1) == 0.1


def test_a_caller_that_is_cancelled_when_it_is_its_turn_gives_the_tokens_back() -> None:
    async def taken_twice() -> None:
        semaphore = TokenSemaphore(10)
        await semaphore.acquire(10)
        second, third = asyncio.create_task(semaphore.acquire(10)), asyncio.create_task(semaphore.acquire(10))
        await asyncio.sleep(0)
        semaphore.release(10)
        second.cancel()
        await asyncio.wait_for(third, 1)

    asyncio.run(taken_twice())
