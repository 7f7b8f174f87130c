import numpy as np
import pytest

from benchmarks.lib.timing import Spread, in_turns, percentiles, slope


def test_percentiles_are_values_that_occurred() -> None:
    seconds = [index / 1000 for index in range(1, 101)]
    assert percentiles(seconds) == pytest.approx({"p50_ms": 50.0, "p95_ms": 95.0, "p99_ms": 99.0})
    assert percentiles([0.002]) == {"p50_ms": 2.0, "p95_ms": 2.0, "p99_ms": 2.0}
    assert percentiles([]) == {}


def test_candidates_run_in_turns_and_the_warm_up_is_dropped() -> None:
    order: list[str] = []

    def run(name: str) -> int:
        order.append(name)
        return len(order)

    results = in_turns({"a": lambda: run("a"), "b": lambda: run("b")}, rounds=2)
    assert "".join(order) == "ababab"
    assert results == {"a": [3, 5], "b": [4, 6]}


def test_a_spread_is_median_and_extremes() -> None:
    spread = Spread.of([3.0, 1.0, 2.0])
    assert (spread.median, spread.lowest, spread.highest) == (2.0, 1.0, 3.0)
    assert str(spread) == "±50%"


def test_slope_is_that_of_the_fitted_line() -> None:
    times = np.linspace(0, 60, 20)
    values = 7.0 + 0.25 * times + np.random.default_rng(0).normal(0, 0.1, 20)
    assert slope(times.tolist(), values.tolist()) == pytest.approx(float(np.polyfit(times, values, 1)[0]))
    assert slope([1.0], [5.0]) == 0.0
