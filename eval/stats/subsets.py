"""Support at k from a pool of more than k samples: the expectation over its k-subsets, not its first k.

A unit that was hit c times in n samples is hit at least r times by a random k-subset with a hypergeometric probability;
for r = 1 it is 1 - C(n-c, k)/C(n, k), the unbiased pass@k of that unit. Base and policy are subset independently, so a
unit is Shrunk at k with probability in_base (1 - in_policy), and so on; the sums over units are the expected table. It
does not depend on the order of the samples, and it varies less than the table of any one subset. At k = n it is the
table itself.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.counts import check_counts, check_hits, check_threshold
from offleash.eval.stats.support import cells_of

Floats = NDArray[np.float64]


def in_support(hits_u: ArrayLike, n_u: ArrayLike, k_u: ArrayLike, threshold: int = 1) -> Floats:
    """Probability that a random k-subset of a unit's n samples holds at least `threshold` of its hits."""
    from scipy.special import gammaln

    check_threshold(threshold)
    counts = {"hits": hits_u, "n": n_u, "k": k_u}
    hits, n, k = np.broadcast_arrays(*(check_counts(name, x).astype(np.float64) for name, x in counts.items()))
    if not (np.all(hits >= 0) and np.all(hits <= n) and np.all(k >= 1) and np.all(k <= n)):
        raise ConfigError("subsets of k samples need 0 <= hits <= n and 1 <= k <= n for every unit")

    def log_choose(top: Floats, bottom: Floats | float) -> Floats:
        return gammaln(top + 1) - gammaln(bottom + 1) - gammaln(top - bottom + 1)

    fewer = np.zeros(hits.shape)
    for j in range(threshold):
        possible = (hits >= j) & (k >= j) & (n - hits >= k - j)
        c, m = np.where(possible, hits, j), np.where(possible, k, j)
        log_p = log_choose(c, float(j)) + log_choose(np.where(possible, n - hits, 0), m - j)
        fewer += np.where(possible, np.exp(log_p - log_choose(n, np.where(possible, k, 0))), 0.0)
    # Whole numbers where nothing is random: at k = n rounding would leave 1e-16 of a unit.
    certain = np.where(k == n, hits >= threshold, np.where(n - hits + threshold <= k, 1.0, np.nan))
    return np.where(np.isnan(certain), np.clip(1 - fewer, 0.0, 1.0), certain)


def expected_cells(
    base_hits_u: ArrayLike,
    policy_hits_u: ArrayLike,
    n_base_u: ArrayLike,
    n_policy_u: ArrayLike,
    k_u: ArrayLike,
    threshold: int = 1,
) -> Floats:
    """[units, 4]: each unit's probability to be P, S, E, O at k samples a side; the expected table is their sum."""
    base, policy = check_hits(base_hits_u, policy_hits_u)
    in_base, in_policy = in_support(base, n_base_u, k_u, threshold), in_support(policy, n_policy_u, k_u, threshold)
    return cells_of(in_base, in_policy)
