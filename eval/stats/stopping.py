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

A plan is about one problem's correct samples: with several units per problem, "until r successes" stops before the rare
ones are found, and a fixed plan is the right one.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.noise import NoiseTest, excess_over
from offleash.eval.stats.passk import all_fail

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def stopped_pass_at_k(draws_p: ArrayLike, successes_p: ArrayLike, ks: ArrayLike, *, successes: int, cap: int) -> Floats:
    """Unbiased pass@k of each problem at each budget from a stopped pool: [p, k]. NaN where k > cap.

    `successes` and `cap` are the plan's r and cap; `draws_p` and `successes_p` are where it left each problem.
    """
    drawn, hits = _check_stopped(draws_p, successes_p, successes, cap)
    budget = np.atleast_1d(np.asarray(ks)).astype(np.int64)
    if np.any(budget < 1):
        raise ConfigError(f"every k must be at least 1, got {budget.min()}")
    by_success = hits == successes
    n, correct = np.where(by_success, drawn - 1, cap), np.where(by_success, successes - 1, hits)
    fail_pk = all_fail(correct, n, np.minimum(budget, cap))
    return np.where(budget > cap, np.nan, 1 - fail_pk)


def stopped_noise_test(
    base: tuple[ArrayLike, ArrayLike],
    policy: tuple[ArrayLike, ArrayLike],
    *,
    successes: int,
    cap: int,
    threshold: int = 1,
) -> NoiseTest:
    """`offleash.eval.stats.noise.noise_test` for two pools drawn under the same plan; each is (draws_p, successes_p).

    Exact for one unit per problem. Given both pools' draws and successes together, each way to split them has a chance
    proportional to its paths in the base times its paths in the policy, whatever the rate.
    """
    base_draws, base_hits = _check_stopped(*base, successes, cap)
    policy_draws, policy_hits = _check_stopped(*policy, successes, cap)
    if base_hits.shape != policy_hits.shape:
        raise ConfigError(f"both pools must hold the same problems, got {base_hits.shape} and {policy_hits.shape}")
    if not 1 <= threshold <= successes:
        raise ConfigError(f"threshold must lie in 1..{successes}, where the plan stops; got {threshold}")
    totals = zip((base_draws + policy_draws).tolist(), (base_hits + policy_hits).tolist(), strict=True)
    pmf = np.ones(1)
    known: dict[tuple[int, int], float] = {}
    for total in totals:
        if total not in known:
            known[total] = _one_sided(*total, successes, cap, threshold)
        if known[total] > 0:
            pmf = np.convolve(pmf, [1 - known[total], known[total]])
    shrunk = int(np.sum((base_hits >= threshold) & (policy_hits < threshold)))
    expanded = int(np.sum((base_hits < threshold) & (policy_hits >= threshold)))
    # Both pools follow the same plan, so the two directions have the same distribution.
    return NoiseTest(excess_over(shrunk, pmf), excess_over(expanded, pmf))


def _one_sided(draws: int, hits: int, successes: int, cap: int, threshold: int) -> float:
    """P(at least `threshold` hits in one given pool, fewer in the other | both pools' draws and hits together)."""
    if hits == 2 * successes:
        return 0.0  # both pools stopped by success
    if draws < 2 * cap:
        # One pool stopped early by success, the other at the cap with the rest: either way round is as likely.
        return 0.5 if hits - successes < threshold else 0.0
    # All draws used: hits split over the pools, a pool of r hits having its last draw a success.
    ways = {h: _paths(h, successes, cap) * _paths(hits - h, successes, cap) for h in range(hits + 1)}
    good = sum(w for h, w in ways.items() if h >= threshold and hits - h < threshold)
    return good / sum(ways.values())


def _paths(hits: int, successes: int, cap: int) -> int:
    """Sequences of exactly `cap` draws that end the plan with this many hits."""
    if hits > successes:
        return 0
    return math.comb(cap - 1, successes - 1) if hits == successes else math.comb(cap, hits)


def _check_plan(successes: int, cap: int) -> None:
    if successes < 1 or cap < 1:
        raise ConfigError(f"a plan needs at least one success and one draw, got successes={successes}, cap={cap}")


def _check_stopped(draws_p: ArrayLike, successes_p: ArrayLike, successes: int, cap: int) -> tuple[Ints, Ints]:
    _check_plan(successes, cap)
    drawn, hits = (np.atleast_1d(np.asarray(a)).astype(np.int64) for a in (draws_p, successes_p))
    if drawn.shape != hits.shape or drawn.ndim != 1:
        raise ConfigError(f"one draw count and one success count per problem, got {drawn.shape} and {hits.shape}")
    at_stop = ((hits == successes) & (drawn >= successes) & (drawn <= cap)) | (
        (hits >= 0) & (hits < successes) & (drawn == cap)
    )
    if not np.all(at_stop):
        i = int(np.flatnonzero(~at_stop)[0])
        raise ConfigError(f"problem {i} has {hits[i]} successes in {drawn[i]} draws, which is not where the plan "
                          f"(until {successes} successes, at most {cap} draws) stops")  # fmt: skip
    return drawn, hits
