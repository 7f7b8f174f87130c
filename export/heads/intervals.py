"""Means over texts with their uncertainty, taken as texts go by: memory does not grow with the corpus.

Texts are the independent unit: tokens of one text are not, so nothing here counts them as such.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from model.analysis.arrays import Float64Array

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean a head, its standard deviation over texts and its 95 % interval, all [H], from n texts."""

    mean: Float64Array
    sd: Float64Array
    low: Float64Array
    high: Float64Array
    n: int


class RunningMean:
    """Mean and variance of vectors [H] that come one at a time (Welford 1962)."""

    def __init__(self) -> None:
        self.n = 0
        self._mean: Float64Array = np.zeros(())
        self._squares: Float64Array = np.zeros(())

    def add(self, values: Float64Array | None) -> None:
        """Takes one text's values; None where the text does not define them."""
        if values is None:
            return
        self.n += 1
        before = values - self._mean
        self._mean = self._mean + before / self.n
        self._squares = self._squares + before * (values - self._mean)

    def estimate(self) -> Estimate | None:
        """Student's interval of the mean; None without a text. Of one text the interval has no bounds: NaN."""
        if not self.n:
            return None
        sd = np.sqrt(self._squares / (self.n - 1)) if self.n > 1 else np.full_like(self._mean, np.nan)
        half = stats.t.ppf((1 + LEVEL) / 2, self.n - 1) * sd / np.sqrt(self.n) if self.n > 1 else sd
        return Estimate(self._mean, sd, self._mean - half, self._mean + half, self.n)


def p_above(estimate: Estimate, threshold: float) -> Float64Array:
    """One-sided p of "the mean is not above the threshold", [H]: Student's t over texts.

    Where all texts agree to the bit the t statistic is undefined; then p is a sign test's, 2^-n above the threshold.
    """
    above = estimate.mean - threshold
    error = estimate.sd / np.sqrt(estimate.n)
    sign_test = np.where(above > 0, 0.5**estimate.n, 1.0)
    if estimate.n < 2:
        return np.ones_like(above)
    safe = np.where(error > 0, error, 1.0)
    p: Float64Array = np.where(error > 0, stats.t.sf(above / safe, estimate.n - 1), sign_test)
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
