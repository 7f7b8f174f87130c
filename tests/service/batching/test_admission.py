import pytest

from service.batching.admission import DrainRate


@pytest.mark.parametrize(
    ("runs", "tokens", "workers", "seconds", "within"),
    [
        ([(100, 0.1)] * 5, 5000, 1, 5.0, 1e-6),  # 1000 tokens a second a worker
        ([(100, 0.1)] * 5, 5000, 2, 2.5, 1e-6),
        ([(1, 0.001), (999, 0.999)], 1000, 1, 1.0, 1e-6),  # weighed by their time, not by their number
        ([(100, 0.1)] * 1000 + [(100, 1.0)] * 200, 1000, 1, 10.0, 0.05),  # the machine became slower
        ([(100, 0.1)] * 1000 + [(100, 10.0)] * 50, 1000, 1, 100.0, 0.4),  # a hundred times
        ([(100, 0.1)] * 100 + [(100, 60.0), (100, 0.1)], 1000, 1, 1.0, 0.5),  # one run was held up
        ([(16_000, 0.02), (5, 0.005)] * 500, 16_005, 1, 0.025, 0.02),  # as on a GPU: milliseconds whatever is in a run
        ([], 10**9, 1, 0.0, 0.0),
    ],
)
def test_the_rate_follows_what_runs_took(
    runs: list[tuple[int, float]], tokens: int, workers: int, seconds: float, within: float
) -> None:
    assert measured(runs).seconds_for(tokens, workers=workers) == pytest.approx(seconds, rel=within)


def measured(runs: list[tuple[int, float]]) -> DrainRate:
    rate = DrainRate()
    for tokens, seconds in runs:
        rate.add(tokens, seconds)
    return rate


@pytest.mark.parametrize(
    ("runs", "seconds"), [([], 1.0), ([(1, 10.0)], 60.0), ([(1000, 0.0)], 0.1), ([(10**9, 5.0)], 5.0)]
)
def test_when_to_come_again_is_bounded(runs: list[tuple[int, float]], seconds: float) -> None:
    assert measured(runs).retry_after(10**9, workers=1) == pytest.approx(seconds)
