import numpy as np
import pytest
from scipy import stats

from export.heads.intervals import estimate, holm, p_above, wilson


def test_mean_and_deviation_are_numpys(generator: np.random.Generator) -> None:
    values = generator.normal(1e3, 1, (50, 3))
    found = estimate(values)
    assert found is not None
    np.testing.assert_allclose(found.mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.sd, values.std(axis=0, ddof=1), rtol=1e-9)
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    np.testing.assert_allclose((found.low, found.high), (expected.low, expected.high), rtol=1e-9)


def test_texts_that_do_not_say_do_not_count() -> None:
    found = estimate([*np.array([[1.0, np.nan], [3.0, np.nan], [5.0, 7.0]]), None])
    assert found is not None
    assert found.n.tolist() == [3, 1]
    assert found.mean.tolist() == [3, 7]
    assert np.isnan(found.low[1])
    assert p_above(found, 0).tolist() == [pytest.approx(stats.ttest_1samp([1, 3, 5], 0, alternative="greater")[1]), 1]
    assert estimate([]) is None


def test_p_is_students_and_a_sign_test_where_nothing_varies(generator: np.random.Generator) -> None:
    values = generator.normal(0.55, 0.1, (30, 4))
    found = estimate(values)
    assert found is not None
    np.testing.assert_allclose(p_above(found, 0.5), stats.ttest_1samp(values, 0.5, alternative="greater")[1], rtol=1e-9)
    constant = estimate(np.full((10, 2), [0.9, 0.1]))
    assert constant is not None
    np.testing.assert_allclose(p_above(constant, 0.5), [0.5**10, 1])


def test_holm_by_hand() -> None:
    # Sorted .01 .02 .03 .04 times 4 3 2 1 is .04 .06 .06 .04, made monotone: .04 .06 .06 .06.
    np.testing.assert_allclose(holm(np.array([[0.03, 0.01], [0.04, 0.02]])), [[0.06, 0.04], [0.06, 0.06]])
    assert holm(np.array([0.9, 0.8])).tolist() == [1, 1]


@pytest.mark.parametrize(("hits", "n"), [(0, 20), (7, 20), (20, 20), (1, 1000)])
def test_wilson_is_scipys(hits: int, n: int) -> None:
    low, high = wilson(np.array([float(hits)]), n, np.ones(1))
    expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_cases_that_hang_together_widen_the_interval() -> None:
    narrow, wide = wilson(np.array([50.0]), 100, np.ones(1)), wilson(np.array([50.0]), 100, np.array([4.0]))
    assert wide[1][0] - wide[0][0] == pytest.approx(2 * (narrow[1][0] - narrow[0][0]), rel=0.06)
