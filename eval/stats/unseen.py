"""How much was never seen: the Good-Turing estimate of the probability of all unseen answers together.

Good 1953 ("The population frequencies of species"): of n samples f1 answers came exactly once; the chance that the next
sample is an answer not seen before is about f1/n. Its bias is at most 1/n and its error about sqrt(f1)/n. It is a sum
over all unseen answers, where the detection limit is about a single one: many answers may each lie below the limit and
together be likely. Zero means below about 3/n, not nothing.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.counts import check_counts, check_draws

Floats = NDArray[np.float64]


def unseen_mass(problem_c: ArrayLike, count_c: ArrayLike, n_p: ArrayLike, k_p: ArrayLike | None = None) -> Floats:
    """f1/n of each problem, from the samples of each answer class; NaN without samples.

    With the classes of correct answers alone it is the chance of a correct answer not seen before. `k_p`: at fewer
    samples, k of them, as the mean over all subsets.
    """
    problem, n = check_counts("problem_c", problem_c), check_counts("n_p", n_p)
    if np.any(problem >= n.size):
        raise ConfigError(f"problem_c must lie in 0..{n.size - 1}, got {problem.max()}")
    count, _ = check_draws("count_c", count_c, n[problem], problem, least=0)
    k = n if k_p is None else np.minimum(check_counts("k_p", k_p), n)
    once_p = np.bincount(problem, _once(count, n[problem], k[problem]), minlength=n.size)
    return np.divide(once_p, k, out=np.full(n.size, np.nan), where=k > 0)


def _once(count_c: NDArray, n_c: NDArray, k_c: NDArray) -> Floats:
    """The share of k-subsets of n samples that hold exactly one of `count`: count C(n - count, k - 1) / C(n, k)."""
    from scipy.special import gammaln

    left, rest = n_c - count_c, k_c - 1
    possible = (count_c > 0) & (rest >= 0) & (rest <= left)
    left, rest = np.where(possible, left, 0), np.where(possible, rest, 0)
    log_ways = gammaln(left + 1) - gammaln(rest + 1) - gammaln(left - rest + 1)
    log_all = gammaln(n_c + 1) - gammaln(k_c + 1) - gammaln(n_c - k_c + 1)
    return np.where(possible, count_c * np.exp(log_ways - log_all), 0.0)
