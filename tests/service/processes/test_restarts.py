from itertools import pairwise

from service.processes.restarts import MOST_DEATHS, STEADY_SECONDS, Restarts


def test_each_start_comes_later_until_there_is_none() -> None:
    restarts = Restarts()
    delays = [restarts.delay_after_death(0, None, 5.0) for _ in range(MOST_DEATHS + 1)]
    assert delays.pop() is None
    waits = [delay for delay in delays if delay is not None]
    assert len(waits) == MOST_DEATHS
    assert waits[0] < 1
    assert all(later == min(10, 2 * sooner) for sooner, later in pairwise(waits))


def test_a_process_that_served_for_long_begins_anew_and_places_are_apart() -> None:
    restarts = Restarts()
    first = restarts.delay_after_death(0, None, 0.0)
    assert restarts.delay_after_death(0, 10.0, 10.0 + STEADY_SECONDS / 2) != first
    assert restarts.delay_after_death(1, None, 0.0) == first
    assert restarts.delay_after_death(0, 10.0, 10.0 + STEADY_SECONDS) == first
