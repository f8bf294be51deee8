"""Adaptive plans: draw until r successes, at most `cap` draws. Their cost, and unbiased estimates from them.

Most problems are easy, and a pool of fixed k spends most of its samples on what is already known. A problem that is
dropped at its r-th success is in support at every threshold up to r exactly when a fixed pool of `cap` of the same
draws would say so; only its count of hits is cut short. That makes c/n, and pass@k from it, biased: it stops on a
success.

Unbiased pass@k of the stopped experiment (Girshick, Mosteller and Savage 1946, "Unbiased estimates for certain binomial
sampling problems"): every sequence of draws that ends at the same stopping point (m draws, s successes) is equally
likely, whatever the true rate. "The first k draws all fail" has probability (1-rate)^k, and for k <= cap the plan
always draws far enough to see whether it happened. Its chance given the stopping point is therefore unbiased:

    (paths to the stopping point that start with k failures) / (all paths to it),

- stopped by the r-th success at draw m: the last draw is a success, r-1 of the others are:  C(m-1-k, r-1) / C(m-1, r-1)
- stopped by the cap with s < r successes:                                                   C(cap-k, s) / C(cap, s)

and pass@k is one minus that. Both are the all-fail share of a fixed pool: of m-1 samples with r-1 correct, and of cap
samples with s correct. With r = 1 the first is simply [m <= k].

Noise. Given both pools' draws and successes together, a problem that stopped on one side and was missed to the cap on
the other could have gone either way with probability 1/2, whatever the counts: that conditioning throws away all that
is known. Two valid tests stand in its place, both over independent problems:

- one by one: base with s successes in m draws, policy with h < threshold in `cap`. Let the first draws be the base's
  and the next ones the policy's, and go on to the next success after `cap`: given its place, the places of the earlier
  ones are uniform, and the probability that so few lie so late is at most
  P = sum over y <= h of C(m, s+h-y) C(cap, y) / C(m+cap, s+h), or C(m, s) / C(m+cap, s) for h = 0. It is a p-value
  that is too large rather than too small. Holm's procedure over these names the problems that are beyond chance.
- their strength: a product of the P <= 1/problems, relative to 1/problems (truncated product, Zaykin et al. 2002). If
  nothing changed each of them falls below that bound with probability 1/problems at most, and then -ln of the ratio is
  at most exponential; the distribution of the sum is that of a binomial number of exponentials. Conservative.
- the sign test: both pools follow one plan, so Shrunk and Expanded are equally likely. Weak on few problems, but it
  adds up many problems that were each barely held.

A plan is about one problem's correct samples: with several units per problem, "until r successes" stops before the rare
ones are found, and a fixed plan is the right one.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.bands import expected_moves
from offleash.eval.stats.counts import check_budgets, check_counts, check_draws, check_threshold
from offleash.eval.stats.noise import Excess, NoiseTest
from offleash.eval.stats.passk import all_fail
from offleash.eval.stats.strength import holm

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def stopped_pass_at_k(draws_p: ArrayLike, successes_p: ArrayLike, ks: ArrayLike, *, successes: int, cap: int) -> Floats:
    """Unbiased pass@k of each problem at each budget from a stopped pool: [p, k]. NaN where k > cap.

    `successes` and `cap` are the plan's r and cap; `draws_p` and `successes_p` are where it left each problem.
    """
    drawn, hits = _check_stopped(draws_p, successes_p, successes, cap)
    budget = check_budgets(ks)
    by_success = hits == successes
    n, correct = np.where(by_success, drawn - 1, cap), np.where(by_success, successes - 1, hits)
    fail_pk = all_fail(correct, n, np.minimum(budget, cap))
    return np.where(budget > cap, np.nan, 1 - fail_pk)


def stopped_noise_test(
    base: tuple[ArrayLike, ArrayLike],
    policy: tuple[ArrayLike, ArrayLike],
    *,
    successes: ArrayLike,
    cap: ArrayLike,
    threshold: int = 1,
) -> NoiseTest:
    """`offleash.eval.stats.noise.noise_test` for two pools drawn under the same plan; each is (draws_p, successes_p).

    One unit per problem. `successes` and `cap` may differ between problems. `p` is the smaller of the sign test's and
    the strength's, doubled for the choice; all p-values are valid and conservative.
    """
    from scipy.special import betainc

    check_threshold(threshold)
    base_draws, base_hits = _check_stopped(*base, successes, cap)
    policy_draws, policy_hits = _check_stopped(*policy, successes, cap)
    if base_hits.shape != policy_hits.shape:
        raise ConfigError(f"both pools must hold the same problems, got {base_hits.shape} and {policy_hits.shape}")
    if np.any(np.asarray(successes) < threshold):
        raise ConfigError(f"threshold must lie in 1..{np.min(successes)}, where the plan stops; got {threshold}")
    in_base, in_policy = base_hits >= threshold, policy_hits >= threshold
    moved = (in_base & ~in_policy, ~in_base & in_policy)
    p_lost = _late_hits(base_draws, base_hits, policy_draws, policy_hits, moved[0])
    p_gained = _late_hits(policy_draws, policy_hits, base_draws, base_hits, moved[1])
    # A stopped problem has the likelihood of a fixed one up to a constant, so the same fit applies.
    expected = expected_moves(base_hits, base_draws, cap, in_base, threshold)
    counts = [int(flags.sum()) for flags in moved]
    sides = []
    for i, p_u in enumerate((p_lost, p_gained)):
        p_sign = float(betainc(counts[i], counts[1 - i] + 1, 0.5)) if counts[i] else 1.0
        p_strength = _truncated_product(p_u)
        p = min(1.0, 2 * min(p_sign, p_strength))
        sides.append(Excess(counts[i], expected[i], p, p_strength, holm(p_u)))
    return NoiseTest(*sides)


def _late_hits(m_p: Ints, hits_p: Ints, cap_p: Ints, late_p: Ints, moved_p: NDArray[np.bool_]) -> Floats:
    """P(at most `late` of all hits among the last `cap` of m + cap draws) where a problem moved, 1 elsewhere."""
    from scipy.special import gammaln

    p_p = np.ones(m_p.shape)
    for i in np.flatnonzero(moved_p):
        m, cap, total = float(m_p[i]), float(cap_p[i]), float(hits_p[i] + late_p[i])
        y = np.arange(int(late_p[i]) + 1, dtype=np.float64)
        y = y[(total - y <= m) & (y <= cap)]

        def ln(top: float, bottom: Floats | float) -> Floats:
            return gammaln(top + 1) - gammaln(bottom + 1) - gammaln(top - bottom + 1)

        p_p[i] = min(1.0, float(np.exp(ln(m, total - y) + ln(cap, y) - ln(m + cap, total)).sum()))
    return p_p


def _truncated_product(p_u: Floats) -> float:
    """p of the product of those p-values that are at most 1/units, under independence."""
    from scipy.special import gammaincc, gammaln, xlog1py

    units = p_u.size
    small = p_u[p_u * units <= 1]
    if not small.size:
        return 1.0
    found = float(-np.log(np.maximum(small * units, np.finfo(float).tiny)).sum())
    many = np.arange(1, units + 1)
    log_ways = gammaln(units + 1) - gammaln(many + 1) - gammaln(units - many + 1)
    log_weight = log_ways - many * math.log(units) + xlog1py(units - many, -1 / units)
    return min(1.0, float(np.exp(log_weight) @ gammaincc(many, found)))


def _check_stopped(
    draws_p: ArrayLike, successes_p: ArrayLike, successes: ArrayLike, cap: ArrayLike
) -> tuple[Ints, Ints]:
    """The plan's own numbers are one for all problems, or one for each."""
    hits, drawn = check_draws("a problem's", np.atleast_1d(successes_p), np.atleast_1d(draws_p))
    stop = np.broadcast_to(check_counts("successes", successes), hits.shape)
    most = np.broadcast_to(check_counts("cap", cap), hits.shape)
    if np.any(stop < 1) or np.any(most < 1):
        least = f"successes={stop.min()}, cap={most.min()}"
        raise ConfigError(f"a plan needs at least one success and one draw, got {least}")
    at_stop = ((hits == stop) & (drawn <= most)) | ((hits < stop) & (drawn == most))
    if not np.all(at_stop):
        i = int(np.flatnonzero(~at_stop)[0])
        raise ConfigError(f"problem {i} has {hits[i]} successes in {drawn[i]} draws, which is not where the plan "
                          f"(until {stop[i]} successes, at most {most[i]} draws) stops")  # fmt: skip
    return drawn, hits
