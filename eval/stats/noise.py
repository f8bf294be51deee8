"""The shrinkage and expansion that sampling alone would show if nothing had changed.

Two questions, two answers. *How much* would an unchanged model lose and gain? That is an expectation, made from the
base's pool alone: see `stats.bands`. *Is it more* than chance? That is a p-value, and for it both pools are put
together. If base and policy are the same model, a problem's n_base + n_policy samples are exchangeable: given how often
each of its answers came up in both pools together, which samples fell into the base's pool is a uniformly random
choice. So, given the totals, and whatever the true rates are:

- a unit with T hits in all looks Shrunk with probability C(n_base, T) / C(n_base + n_policy, T) (all T fell into the
  base's pool), and Expanded likewise: the test of arXiv 2606.15455, App. C, for unequal pools. At a threshold of r hits
  it is a sum over the hypergeometric distribution (at least r on one side, fewer than r on the other).
- problems are independent, so the distribution of the count is the convolution over problems. Units of one problem are
  not: its answers compete for the same draws (jointly, multivariate hypergeometric), and convolving over units is wrong
  for them. Within a problem the distribution is computed exactly: multivariate hypergeometric counts are independent
  binomials given their sum, so a walk over the units that carries (base draws used, units Shrunk so far) has it all.
- the count ignores how firmly a unit was held; `stats.strength` has the test that does not, and the units that are
  beyond chance one by one.

Only for plans that draw a fixed n: where n depends on what was drawn, see `stats.stopping.stopped_noise_test`.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.stats.bands import expected_moves
from offleash.eval.stats.counts import check_counts, check_draws, check_hits, check_problems, check_threshold
from offleash.eval.stats.strength import beyond_chance, deal, p_of_deals, strength
from offleash.eval.stats.subsets import in_support

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_NEGLIGIBLE = 1e-18  # a unit less likely than this to look Shrunk is one of the other samples


class Excess(NamedTuple):
    """A count beside what sampling noise explains of it."""

    observed: float
    """Units; a fraction where the table is an expectation over k-subsets."""
    expected: float
    """Of a second sample of the base, given its first (`stats.bands`); NaN at n = 1, where nothing can be told."""
    p: float
    """Chance of a count at least this large if nothing had changed; conservative because counts are integers."""
    p_strength: float
    """The same for how firmly the units that moved were held (`stats.strength`): the test to go by."""
    sure_u: Flags
    """Units whose move chance does not explain one by one (Holm over units, 5 %)."""
    pmf: Floats = np.empty(0)
    """The null distribution of the count where it is exact: fixed plans, all draws."""

    @property
    def excess(self) -> float:
        return self.observed - self.expected


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
    *,
    k: ArrayLike | None = None,
    listed: bool = True,
    rng: np.random.Generator | None = None,
) -> NoiseTest:
    """Observed Shrunk and Expanded against what sampling noise alone would show.

    Args:
        base_hits_u: how many of the base's samples hit each unit.
        policy_hits_u: the same for the policy, over the same units.
        n_base_u: the base's samples of each unit's problem, or one number for all.
        n_policy_u: the same for the policy.
        problem_u: the problem each unit belongs to (default: each its own). Samples that hit none of a problem's units
            are other answers: units may be left out without making the p-values any less exact.
        threshold: hits from which a unit is in support.
        k: count support at k samples a side, as an expectation over the k-subsets of both pools (`stats.subsets`);
            one number, or one per unit. None: of all samples. Strength and the units beyond chance always use all.
        listed: whether the units are all there are, hit or not. False if they are known only from being hit.
        rng: of the random deals behind `p_strength`; None is a fixed seed, so that equal counts give equal numbers.

    >>> from offleash.eval import noise_test
    >>> lost = noise_test([1, 1, 30, 22], [0, 2, 25, 0], 64, 64).shrunk
    >>> lost.observed, round(lost.expected, 2), round(lost.p, 2), lost.p_strength < 0.001, int(lost.sure_u.sum())
    (2, 0.68, 0.06, True, 1)
    """
    check_threshold(threshold)
    base, policy = check_hits(base_hits_u, policy_hits_u)
    problem = check_problems(problem_u, base.size)
    base, n_base = check_draws("base", base, n_base_u, problem)
    policy, n_policy = check_draws("policy", policy, n_policy_u, problem)
    rng = np.random.default_rng(0) if rng is None else rng
    in_base, in_policy = base >= threshold, policy >= threshold
    moved = (in_base & ~in_policy, ~in_base & in_policy)
    total = base + policy
    chance = (one_sided(total, n_base, n_policy, threshold), one_sided(total, n_policy, n_base, threshold))
    table = None if k is None else _SubsetTable.of(total, n_base, n_policy, k, threshold, problem)

    def statistics(base_bu: Ints, units: Ints) -> Floats:
        policy_bu = total[units] - base_bu
        here, there = base_bu >= threshold, policy_bu >= threshold
        columns = [strength(here & ~there, chance[0][units]), strength(~here & there, chance[1][units])]
        return np.stack(columns if table is None else [*columns, *table.counts(base_bu, policy_bu)], axis=-1)

    every = np.arange(base.size)
    found = statistics(base[None], every)[0]
    # Units that no deal would move need no deal: their samples are other answers.
    dealt_units = np.flatnonzero(np.maximum(*chance) > _NEGLIGIBLE) if table is None else every
    columns = (total[dealt_units], n_base[dealt_units], n_policy[dealt_units], problem[dealt_units])
    dealt = deal(*columns, lambda base_bu: statistics(base_bu, dealt_units), rng=rng)
    p_deals = [p_of_deals(float(one), dealt[:, i]) for i, one in enumerate(found)]
    sure = [beyond_chance(moved[i], chance[i], total > 0) for i in (0, 1)]
    if table is None:
        expected = expected_moves(base, n_base, n_policy, in_base, threshold, listed=listed)
        pmfs = [_null_pmf(total, *pools, problem, threshold) for pools in ((n_base, n_policy), (n_policy, n_base))]
        counts = [int(moved[i].sum()) for i in (0, 1)]
        sides = [Excess(counts[i], expected[i], tail(counts[i], pmfs[i]), p_deals[i], sure[i], pmfs[i]) for i in (0, 1)]
    else:
        expected = expected_moves(base, n_base, table.k, table.base_support(base), threshold, listed=listed)
        sides = [Excess(float(found[2 + i]), expected[i], p_deals[2 + i], p_deals[i], sure[i]) for i in (0, 1)]
    return NoiseTest(*sides)


def tail(observed: int, pmf: Floats) -> float:
    """P(count >= observed) under `pmf` over 0, 1, 2, ..."""
    # The small terms first: the sum of a whole distribution is then 1 more often.
    return min(1.0, float(pmf[observed + 1 :].sum() + pmf[observed : observed + 1].sum()))


class _SubsetTable(NamedTuple):
    """Each unit's probability to be in support at k, looked up by its hits."""

    k: Ints
    base: Floats
    """[kinds of (n, k), hits]."""
    base_row: Ints
    policy: Floats
    policy_row: Ints

    @classmethod
    def of(
        cls, total_u: Ints, n_base_u: Ints, n_policy_u: Ints, k: ArrayLike, threshold: int, problem_u: NDArray
    ) -> "_SubsetTable":
        k_u = np.broadcast_to(check_counts("k", k), total_u.shape)
        check_draws("k", np.zeros_like(k_u), k_u, problem_u)
        most = int(total_u.max(initial=0))
        base, policy = (_support_by_hits(n_u, k_u, most, threshold) for n_u in (n_base_u, n_policy_u))
        return cls(k_u, *base, *policy)

    def base_support(self, base_bu: Ints) -> Floats:
        return self.base[self.base_row, base_bu]

    def counts(self, base_bu: Ints, policy_bu: Ints) -> tuple[Floats, Floats]:
        """Expected Shrunk and Expanded at k."""
        in_base, in_policy = self.base_support(base_bu), self.policy[self.policy_row, policy_bu]
        return (in_base * (1 - in_policy)).sum(axis=-1), ((1 - in_base) * in_policy).sum(axis=-1)


def _support_by_hits(n_u: Ints, k_u: Ints, most: int, threshold: int) -> tuple[Floats, Ints]:
    kinds, row_u = np.unique(np.stack([n_u, k_u], axis=1), axis=0, return_inverse=True)
    hits = np.arange(most + 1)
    table = [in_support(np.minimum(hits, n), n, k, threshold) for n, k in kinds.tolist()]
    return np.array(table).reshape(len(kinds), most + 1), row_u.ravel()


def one_sided(total_u: Ints, n_here_u: Ints, n_there_u: Ints, threshold: int) -> Floats:
    """P(at least `threshold` of the total here, fewer there), the total split at random over both pools."""
    chance_u = np.zeros(total_u.shape)
    wide = int(n_there_u.max(initial=0)) + 1
    pools_u = n_here_u * wide + n_there_u
    for n_here, n_there in (divmod(pools, wide) for pools in np.unique(pools_u).tolist()):
        same = pools_u == n_here * wide + n_there
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
    chance_u = one_sided(total_u, n_here_u, n_there_u, threshold)
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
