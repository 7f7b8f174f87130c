"""Means over texts with their uncertainty; tokens of one text are not independent, so nothing counts them as such."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from model.analysis.arrays import Float64Array

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean a head, its standard deviation over texts and its 95 % interval, from n texts; all [H].

    NaN where texts do not say: the mean of none, deviation and interval of one.
    """

    mean: Float64Array
    sd: Float64Array
    low: Float64Array
    high: Float64Array
    n: NDArray[np.int64]


def estimate(rows: Iterable[Float64Array | None]) -> Estimate | None:
    """Student's interval of the mean of a row [H] a text; None without a text.

    A row is None where its text does not define the value, and holds NaN where it does not for a head.
    """
    defined = [row for row in rows if row is not None]
    if not defined:
        return None
    values = np.stack(defined)  # [texts, H]
    known = ~np.isnan(values)
    n = known.sum(axis=0)
    if not n.any():
        return None
    least = np.where(known, values, np.inf).min(axis=0)  # counted from, so that equal rows have no deviation at all
    above = np.where(known, values - least, 0.0)
    rise = above.sum(axis=0) / np.maximum(n, 1)
    mean = np.where(n > 0, least + rise, np.nan)
    squares = np.where(known, above - rise, 0.0) ** 2
    sd = np.where(n > 1, np.sqrt(squares.sum(axis=0) / np.maximum(n - 1, 1)), np.nan)
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
