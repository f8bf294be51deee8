"""Estimates with their interval and count, and the resampling that the intervals come from.

Problems are the unit of resampling: what is drawn for one problem stays together, and base and policy stay paired.
The resampling is the Bayesian bootstrap (Rubin 1981, "The Bayesian Bootstrap"): Dirichlet weights over problems in
place of multinomial ones. The plain bootstrap calls a count of zero certain ([0, 0]); support data are full of zeros.
So callers add a few pseudo-problems of small total weight at the extremes (the proper Bayesian bootstrap of Muliere
and Secchi 1996), which for one unit per problem is exactly the Jeffreys interval of a proportion. Coverage is measured
in tests/eval/stats/test_support.py and tests/eval/stats/test_passk.py.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError

Floats = NDArray[np.float64]

_BLOCK = 4_000_000  # weights held in memory at once


class Estimate(NamedTuple):
    """A number that is never reported without its interval and sample size.

    >>> from offleash.eval import Estimate
    >>> accuracy = Estimate(value=0.62, low=0.55, high=0.69, n=200)
    >>> accuracy.low <= accuracy.value <= accuracy.high, accuracy.n
    (True, 200)
    """

    value: float
    low: float
    high: float
    n: int


def interval(value: float, resampled_b: ArrayLike, n: int, confidence: float = 0.95) -> Estimate:
    """Percentile interval of the resampled values, widened where needed to contain `value`; they may be infinite.

    Resampled values that are undefined (NaN) are left out; a NaN `value` has a NaN interval.
    """
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    resampled = np.asarray(resampled_b, dtype=np.float64)
    resampled = resampled[~np.isnan(resampled)]
    if np.isnan(value) or resampled.size == 0:
        return Estimate(float(value), np.nan, np.nan, n)
    tail = (1 - confidence) / 2
    # An order statistic, not an interpolation: inf - inf would be NaN.
    low, high = np.quantile(resampled, [tail, 1 - tail], method="inverted_cdf")
    return Estimate(float(value), min(float(low), float(value)), max(float(high), float(value)), n)


def weighted_means(rows_rc: ArrayLike, shape_r: ArrayLike, resamples: int, rng: np.random.Generator) -> Floats:
    """`resamples` random weighted means of the rows: [resamples, c]. Weights are Dirichlet(`shape_r`).

    A row's shape is the number of identical problems it stands for (sums of Dirichlet weights are Dirichlet, so
    grouping equal problems changes nothing but the cost), or a fraction for a pseudo-problem.
    """
    rows = np.asarray(rows_rc, dtype=np.float64)
    shape = np.asarray(shape_r, dtype=np.float64)
    means = np.empty((resamples, rows.shape[1]))
    step = max(1, _BLOCK // max(1, len(shape)))
    for start in range(0, resamples, step):
        weights = rng.standard_gamma(shape, size=(min(step, resamples - start), len(shape)))
        means[start : start + step] = (weights @ rows) / weights.sum(axis=1, keepdims=True)
    return means
