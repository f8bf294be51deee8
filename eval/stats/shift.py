"""Did the probability of success shift between two samples of the same problems?

The test of Cochran, Mantel and Haenszel: given the successes of both samples together, those of one sample are
hypergeometric in each problem if nothing changed; their sum over problems is compared with its mean and variance. With
as many draws on both sides that distribution is symmetric with tails lighter than the normal's, so the p-value of the
normal approximation errs on the safe side.
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
