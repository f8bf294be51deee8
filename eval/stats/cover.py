"""cover@tau: the fraction of problems that a model solves with a probability of at least tau.

Dragoi et al. 2025 (arXiv 2510.08325, "Beyond Pass@k"): G(tau) = mean over problems of 1{p >= tau}, with p estimated by
c/n. A small tau asks for breadth, a large one for reliability; pass@k is an average of G over tau with nearly all its
weight near 0.
The estimate is a plug-in. An indicator of p has no unbiased estimator: a problem whose p lies within 1/sqrt(n) of tau
may fall on either side. Compare pools at the same k: of n samples, what k of them show on average.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.counts import check_counts, check_draws
from offleash.eval.stats.subsets import in_support

Floats = NDArray[np.float64]

TAUS = (0.2, 0.8)
"""What is reported: breadth and reliability."""
_ROUNDING = 1e-9


def cover_at_tau(correct_p: ArrayLike, n_p: ArrayLike, tau: float, k_p: ArrayLike | None = None) -> Floats:
    """1.0 for each problem with c/n >= tau, 0.0 for the others; cover@tau is the mean.

    With `k_p`, the fraction of k-subsets of a problem's samples with that rate. NaN where k (n without) is less than
    1/tau or 1/(1 - tau): then only "never" or "always" tells the two sides apart.
    """
    checked = check_draws("correct_p", correct_p, n_p, least=0)
    correct, n = (np.atleast_1d(counts).astype(np.float64) for counts in checked)
    if not 0 < tau < 1:
        raise ConfigError(f"tau must lie strictly between 0 and 1, got {tau}")
    budget = n if k_p is None else np.broadcast_to(check_counts("k_p", k_p).astype(np.float64), n.shape)
    covered_p = np.where(correct >= tau * n - _ROUNDING, 1.0, 0.0)
    for k in np.unique(budget[(budget < n) & (budget > 0)]).tolist():
        fewer = (budget == k) & (budget < n)
        covered_p[fewer] = in_support(correct[fewer], n[fewer], k, math.ceil(tau * k - _ROUNDING))
    return np.where(budget * min(tau, 1 - tau) >= 1 - _ROUNDING, covered_p, np.nan)
