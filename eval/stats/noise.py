"""The shrinkage and expansion that sampling alone would show if nothing had changed.

If base and policy are the same model, a problem's n_base + n_policy samples are exchangeable: given how often each of
its answers came up in both pools together, which samples fell into the base's pool is a uniformly random choice. So,
given the totals, and whatever the true rates are:

- a unit with T hits in all looks Shrunk with probability C(n_base, T) / C(n_base + n_policy, T) (all T fell into the
  base's pool), and Expanded likewise: the test of arXiv 2606.15455, App. C, for unequal pools. At a threshold of r hits
  it is a sum over the hypergeometric distribution (at least r on one side, fewer than r on the other).
- the expected count of Shrunk units is the sum of these. That is exact for any units.
- problems are independent, so the distribution of the count is the convolution over problems. Units of one problem are
  not: its answers compete for the same draws (jointly, multivariate hypergeometric), and convolving over units is wrong
  for them. Within a problem the distribution is computed exactly: multivariate hypergeometric counts are independent
  binomials given their sum, so a walk over the units that carries (base draws used, units Shrunk so far) has it all.

Only for plans that draw a fixed n: where n depends on what was drawn, see `stats.stopping.stopped_noise_test`.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.support import check_hits, check_problems

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NEGLIGIBLE = 1e-18  # a unit less likely than this to look Shrunk is one of the other samples


class Excess(NamedTuple):
    """A count beside what sampling noise explains of it.

    `p` is the exact chance of a count at least this large if nothing had changed; it is conservative because counts are
    integers. `pmf` is the full null distribution.
    """

    observed: int
    expected: float
    excess: float
    p: float
    pmf: Floats


class NoiseTest(NamedTuple):
    """One-sided: more Shrunk (more Expanded) than sampling noise explains."""

    shrunk: Excess
    expanded: Excess


def noise_test(
    base_hits_u: ArrayLike,
    policy_hits_u: ArrayLike,
    n_base_u: ArrayLike,
    n_policy_u: ArrayLike,
    problem_u: ArrayLike | None = None,
    threshold: int = 1,
) -> NoiseTest:
    """Observed Shrunk and Expanded against their exact null distributions.

    Args:
        base_hits_u: how many of the base's samples hit each unit.
        policy_hits_u: the same for the policy, over the same units.
        n_base_u: the base's samples of each unit's problem, or one number for all.
        n_policy_u: the same for the policy.
        problem_u: the problem each unit belongs to (default: each its own). Samples that hit none of a problem's units
            are other answers: units may be left out without making the rest any less exact.
        threshold: hits from which a unit is in support.

    >>> from offleash.eval import noise_test
    >>> test = noise_test([1, 1, 30, 8], [0, 2, 25, 0], 64, 64)
    >>> test.shrunk.observed, round(test.shrunk.expected, 2), round(test.shrunk.p, 4)
    (2, 0.63, 0.0626)
    """
    base, policy, n_base, n_policy = _check_counts(base_hits_u, policy_hits_u, n_base_u, n_policy_u, threshold)
    problem = check_problems(problem_u, base.size)
    groups = np.unique(np.stack([np.unique(problem, return_inverse=True)[1], n_base, n_policy]), axis=1)
    if groups.shape[1] != len(np.unique(problem)):
        raise ConfigError("units of one problem share its draws: their n_base and n_policy must be equal")
    shrunk = int(np.sum((base >= threshold) & (policy < threshold)))
    expanded = int(np.sum((base < threshold) & (policy >= threshold)))
    total = base + policy
    return NoiseTest(
        excess_over(shrunk, _null_pmf(total, n_base, n_policy, problem, threshold)),
        excess_over(expanded, _null_pmf(total, n_policy, n_base, problem, threshold)),
    )


def excess_over(observed: int, pmf: Floats) -> Excess:
    """A count against its null distribution `pmf` over 0, 1, 2, ..."""
    expected = float(np.arange(pmf.size) @ pmf)
    # The small terms first: the sum of a whole distribution is then 1 more often.
    p = min(1.0, float(pmf[observed + 1 :].sum() + pmf[observed : observed + 1].sum()))
    return Excess(observed, expected, observed - expected, p, pmf)


def _one_sided(total_u: Ints, n_here_u: Ints, n_there_u: Ints, threshold: int) -> Floats:
    """P(at least `threshold` of the total here, fewer there), the total split at random over both pools."""
    chance_u = np.zeros(total_u.shape)
    for n_here, n_there in np.unique(np.stack([n_here_u, n_there_u], axis=1), axis=0).tolist():
        same = (n_here_u == n_here) & (n_there_u == n_there)
        chance_u[same] = _one_sided_of_pools(total_u[same], n_here, n_there, threshold)
    return chance_u


def _one_sided_of_pools(total_t: Ints, n_here: int, n_there: int, threshold: int) -> Floats:
    """The same for one pair of pools: the sum over y < threshold hits there of C(T,y) [here]_(T-y) [there]_y/[N]_T."""
    n = n_here + n_there
    i = np.arange(n_here)
    log_here = np.r_[0.0, np.cumsum(np.log(n_here - i) - np.log(n - i))]
    chance_t = np.zeros(total_t.shape)
    for there in range(min(threshold, n_there + 1)):
        here = total_t - there
        possible = (here >= threshold) & (here <= n_here)
        x = np.where(possible, here, 0)
        log_there = sum(
            np.log(n_there - i) - np.log(n - x - i) + np.log(x + 1 + i) - math.log(i + 1) for i in range(there)
        )
        chance_t += np.where(possible, np.exp(log_here[x] + log_there), 0.0)
    return chance_t


def _null_pmf(total_u: Ints, n_here_u: Ints, n_there_u: Ints, problem_u: NDArray, threshold: int) -> Floats:
    """Distribution of the number of units that look present here and absent there, given all totals."""
    chance_u = _one_sided(total_u, n_here_u, n_there_u, threshold)
    kept = np.flatnonzero(chance_u > _NEGLIGIBLE)
    kept = kept[np.argsort(problem_u[kept], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(np.unique(problem_u[kept], return_inverse=True)[1]) != 0])
    pmf = np.ones(1)
    for group in np.split(kept, starts[1:]) if kept.size else []:
        if group.size == 1:
            chance = float(chance_u[group[0]])
            pmf = np.convolve(pmf, [1 - chance, chance])
        else:
            n_here, n_there = int(n_here_u[group[0]]), int(n_there_u[group[0]])
            pmf = np.convolve(pmf, _problem_pmf(total_u[group], n_here, n_there, threshold))
    return pmf


def _problem_pmf(total_u: Ints, n_here: int, n_there: int, threshold: int) -> Floats:
    """The same within one problem, whose units compete for its draws: a walk over (draws used here, units counted)."""
    n = n_here + n_there
    rate = n_here / n
    ways_xs = np.ones((1, 1))
    for total in total_u:
        grown = np.zeros((ways_xs.shape[0] + total, ways_xs.shape[1] + 1))
        for x, chance in enumerate(_binomial_pmf(int(total), rate, np.arange(total + 1))):
            counted = int(x >= threshold and total - x < threshold)
            grown[x : x + ways_xs.shape[0], counted : counted + ways_xs.shape[1]] += chance * ways_xs
        ways_xs = grown
    # Given the sum: the samples on other answers must bring the draws here to exactly n_here.
    others = n - int(total_u.sum())
    left_x = n_here - np.arange(ways_xs.shape[0])
    possible = (left_x >= 0) & (left_x <= others)
    pmf = _binomial_pmf(others, rate, left_x[possible]) @ ways_xs[possible]
    return pmf / pmf.sum()


def _binomial_pmf(n: int, rate: float, x: Ints) -> Floats:
    """By hand: scipy.stats takes a second to import, for three lines."""
    log_choose = math.lgamma(n + 1) - np.array([math.lgamma(i + 1) + math.lgamma(n - i + 1) for i in x.tolist()])
    return np.exp(log_choose + x * math.log(rate) + (n - x) * math.log1p(-rate))


def _check_counts(
    base_hits_u: ArrayLike, policy_hits_u: ArrayLike, n_base_u: ArrayLike, n_policy_u: ArrayLike, threshold: int
) -> tuple[Ints, Ints, Ints, Ints]:
    base, policy = check_hits(base_hits_u, policy_hits_u)
    n_base = np.broadcast_to(np.asarray(n_base_u).astype(np.int64), base.shape)
    n_policy = np.broadcast_to(np.asarray(n_policy_u).astype(np.int64), base.shape)
    if np.any(base > n_base) or np.any(policy > n_policy):
        raise ConfigError("a unit's hits must lie between 0 and the draws of its problem")
    if np.any(n_base < 1) or np.any(n_policy < 1):
        raise ConfigError("every unit needs at least one draw on each side")
    if threshold < 1:
        raise ConfigError(f"threshold must be at least 1 hit, got {threshold}")
    return base, policy, n_base, n_policy
