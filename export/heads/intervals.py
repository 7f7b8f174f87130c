"""Means over texts with their uncertainty, taken text by text: memory does not grow with the corpus.

Texts are the independent unit: tokens of one text are not, so nothing here counts them as such.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from model.analysis.arrays import Float64Array

LEVEL = 0.95

Int64Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean a head, its standard deviation over texts and its 95 % interval, from n texts; all [H].

    NaN where texts do not say: the mean of none, deviation and interval of one.
    """

    mean: Float64Array
    sd: Float64Array
    low: Float64Array
    high: Float64Array
    n: Int64Array


class RunningMean:
    """Mean and variance of vectors [H] that come one at a time (Welford 1962)."""

    def __init__(self) -> None:
        self._n: Int64Array = np.zeros(0, np.int64)
        self._mean: Float64Array = np.zeros(0)
        self._squares: Float64Array = np.zeros(0)

    def add(self, values: Float64Array | None) -> None:
        """Takes one text's values; None where the text does not define them, NaN where it does not for a head."""
        if values is None:
            return
        if not len(self._n):
            self._n = np.zeros(len(values), np.int64)
            self._mean, self._squares = np.zeros(len(values)), np.zeros(len(values))
        defined = ~np.isnan(values)
        self._n += defined
        before = np.where(defined, values - self._mean, 0.0)
        self._mean = self._mean + before / np.maximum(self._n, 1)
        self._squares = self._squares + before * np.where(defined, values - self._mean, 0.0)

    def estimate(self) -> Estimate | None:
        """Student's interval of the mean; None without a text."""
        if not self._n.any():
            return None
        n = self._n
        mean = np.where(n > 0, self._mean, np.nan)
        sd = np.where(n > 1, np.sqrt(self._squares / np.maximum(n - 1, 1)), np.nan)
        half = stats.t.ppf((1 + LEVEL) / 2, np.maximum(n - 1, 1)) * sd / np.sqrt(np.maximum(n, 1))
        return Estimate(mean, sd, mean - half, mean + half, n)


def p_above(estimate: Estimate, threshold: float) -> Float64Array:
    """One-sided p of "the mean is not above the threshold", [H]: Student's t over texts; 1 for fewer than two.

    Where all texts agree to the bit the t statistic is undefined; then p is a sign test's, 2^-n above the threshold.
    """
    known = estimate.n > 1
    above = np.where(known, estimate.mean - threshold, -1.0)
    error = np.where(known, estimate.sd, 0.0) / np.sqrt(np.maximum(estimate.n, 1))
    sign_test = np.where(above > 0, 0.5**estimate.n, 1.0)
    varies = error > 0
    tail = stats.t.sf(above / np.where(varies, error, 1.0), np.maximum(estimate.n - 1, 1))
    p: Float64Array = np.where(varies, tail, sign_test)
    return p


def holm(p: Float64Array) -> Float64Array:
    """Holm's (1979) adjusted p values of any shape: below 0.05 holds for all of them together with 95 %."""
    flat = p.ravel()
    order = np.argsort(flat)
    steps = flat[order] * np.arange(len(flat), 0, -1)
    adjusted = np.empty_like(flat)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.reshape(p.shape)


def wilson(hits: Float64Array, n: float, design_effect: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Wilson's (1927) 95 % interval of a share, for n cases that are worth n / design_effect independent ones."""
    worth = n / np.maximum(design_effect, 1.0)
    share = hits / n
    z = stats.norm.ppf((1 + LEVEL) / 2)
    centre = (share + z**2 / (2 * worth)) / (1 + z**2 / worth)
    half = z / (1 + z**2 / worth) * np.sqrt(share * (1 - share) / worth + z**2 / (4 * worth**2))
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)
