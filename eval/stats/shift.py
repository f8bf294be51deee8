"""Did the probability of success shift between two samples of the same problems?

The test of Cochran, Mantel and Haenszel: given the successes of both samples together, those of one sample are
hypergeometric in each problem if nothing changed; their sum over problems is compared with its mean and variance. With
as many draws on both sides that distribution is symmetric with tails lighter than the normal's, so the p-value of the
normal approximation errs on the safe side.

Where the number of draws is itself random, as under a plan that stops early, that distribution is another. Two samples
under one plan can still be exchanged, problem by problem: `exchange_p`.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr


def shift_p(hits_p: npt.ArrayLike, other_hits_p: npt.ArrayLike, n_p: npt.ArrayLike, other_n_p: npt.ArrayLike) -> float:
    """Two-sided p-value; NaN where no problem can tell, all its draws having succeeded or failed."""
    hits, others, n, m = (np.asarray(values, np.float64) for values in (hits_p, other_hits_p, n_p, other_n_p))
    total, draws = hits + others, n + m
    expected = np.divide(n * total, draws, out=np.zeros_like(total), where=draws > 0)
    spread = draws**2 * (draws - 1)
    variance = np.divide(total * (draws - total) * n * m, spread, out=np.zeros_like(total), where=spread > 0).sum()
    if variance == 0:
        return math.nan
    z = max(abs(float((hits - expected).sum())) - 0.5, 0.0) / math.sqrt(variance)
    return float(2 * ndtr(-z))


def exchange_p(difference_p: npt.ArrayLike) -> float:
    """Two-sided p-value of the sum of differences between two samples of each problem; NaN if none differs.

    If nothing changed each difference has either sign with the same probability, and a sum of independent signs times
    d is above t |d| with probability at most exp(-t^2 / 2) (Hoeffding 1963, theorem 2): an upper bound for any number
    of problems.
    """
    difference = np.asarray(difference_p, np.float64)
    length = float(np.sqrt((difference**2).sum()))
    if length == 0:
        return math.nan
    return min(1.0, 2 * math.exp(-((float(difference.sum()) / length) ** 2) / 2))
