"""pass@k and its relatives at every budget from one pool, with intervals, paired differences and the crossing.

pass@k is the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, eq. 1): of n samples c are correct, and
1 - C(n-c, k)/C(n, k) is the share of k-subsets that hold a correct one. The ratio is a running product over k, so all
budgets 1..n of a problem cost n multiplications and lose no digits to logarithms. k > n is undefined: NaN.
Intervals resample problems (see `offleash.eval.stats.intervals`). Asked for by verl#7240, limit-of-RLVR#10 and others.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.intervals import Estimate, interval, weighted_means

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BLOCK = 2_000_000  # products held in memory at once


class CurveComparison(NamedTuple):
    """Mean pass@k of base and policy, base minus policy, each one Estimate per k; and where the base overtakes."""

    base: list[Estimate]
    policy: list[Estimate]
    difference: list[Estimate]
    crossing: Estimate


def powers_of_two(k: int) -> list[int]:
    """1, 2, 4, ... up to k."""
    return [2**i for i in range(k.bit_length())]


def budgets(n: int) -> list[int]:
    """The usual ladder of k: powers of two up to n, and n itself."""
    ladder = powers_of_two(n)
    return ladder if not ladder or ladder[-1] == n else [*ladder, n]


def pass_at_k(correct_p: ArrayLike, n_p: ArrayLike, ks: ArrayLike) -> Floats:
    """Unbiased pass@k of each problem at each budget: an array [problems, ks]. NaN where k > n.

    Args:
        correct_p: correct samples of each problem.
        n_p: samples of each problem, or one number for all.
        ks: the budgets.

    >>> from offleash.eval import pass_at_k
    >>> pass_at_k([0, 1, 4], 8, [1, 4, 8]).round(3).tolist()
    [[0.0, 0.0, 0.0], [0.125, 0.5, 1.0], [0.5, 0.986, 1.0]]
    """
    correct, n, budget = _check_pool(correct_p, n_p, ks)
    return np.where(budget > n[:, None], np.nan, 1 - all_fail(correct, n, budget))


def all_fail(correct_p: Ints, n_p: Ints, ks: Ints) -> Floats:
    """C(n-c, k)/C(n, k): the share of k-subsets of n samples, c of them correct, with no correct one; 0 if k > n-c."""
    if ks.size == 0 or n_p.size == 0:
        return np.empty((n_p.size, ks.size))
    pairs_r, index_p = np.unique(np.stack([n_p, correct_p], axis=1), axis=0, return_inverse=True)
    j = np.arange(int(ks.max()))
    fail_rk = np.empty((len(pairs_r), ks.size))
    step = max(1, _BLOCK // j.size)
    for start in range(0, len(pairs_r), step):
        n, c = pairs_r[start : start + step].T[:, :, None]
        left = n - c - j
        factors = np.divide(left, n - j, out=np.zeros(left.shape), where=left > 0)
        fail_rk[start : start + step] = np.cumprod(factors, axis=1, out=factors)[:, ks - 1]
    return fail_rk[index_p.ravel()]


def majority_at_k(
    counts_a: ArrayLike, correct_a: ArrayLike, k: int, *, rng: np.random.Generator, resamples: int = 1000
) -> float:
    """Chance that the most common answer of k samples is correct, for one problem.

    `counts_a` holds the samples per answer class, `correct_a` which classes are correct. "No answer" is drawn but casts
    no vote: give its count last, without an entry in `correct_a`. Ties are split evenly; a draw without any vote is
    wrong. Monte Carlo over k-subsets of the pool without replacement: unbiased, standard error at most
    0.5/sqrt(resamples), none at k = n. NaN where k > n.
    """
    counts, correct = np.asarray(counts_a, dtype=np.int64), np.asarray(correct_a, dtype=bool)
    if counts.ndim != 1 or correct.ndim != 1 or counts.size - correct.size not in (0, 1) or np.any(counts < 0):
        raise ConfigError(f"one count per class and one flag per voting class are needed, got {counts} and {correct}")
    if k < 1:
        raise ConfigError(f"k must be at least 1, got {k}")
    if k > counts.sum():
        return float("nan")
    size = 1 if k == counts.sum() else resamples
    votes_ba = rng.multivariate_hypergeometric(counts, k, size=size, method="marginals")[:, : correct.size]
    winners_ba = (votes_ba == votes_ba.max(axis=1, keepdims=True, initial=0)) & (votes_ba > 0)
    winners_b = winners_ba.sum(axis=1)
    return float(np.mean((winners_ba & correct).sum(axis=1) / np.maximum(winners_b, 1)))


def compare_curves(
    base_pk: ArrayLike,
    policy_pk: ArrayLike,
    ks: Sequence[int],
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> CurveComparison:
    """Both curves, base minus policy and the crossing, from the same resampled problems."""
    base, policy = np.asarray(base_pk, dtype=np.float64), np.asarray(policy_pk, dtype=np.float64)
    if base.shape != policy.shape or base.ndim != 2 or base.shape[1] != len(ks):
        raise ConfigError(f"two [problems, {len(ks)}] arrays over the same problems are needed, got "
                          f"{base.shape} and {policy.shape}")  # fmt: skip
    n, width = base.shape
    corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.float64)
    rows = np.vstack([np.hstack([base, policy]), np.repeat(corners, width, axis=1)])
    means_bk = weighted_means(rows, np.r_[np.ones(n), np.full(4, 0.25)], resamples, rng)
    base_b, policy_b = means_bk[:, :width], means_bk[:, width:]
    base_mean, policy_mean = _means(base), _means(policy)
    crossings = [crossing(one, other, ks) for one, other in zip(base_b, policy_b, strict=True)]
    return CurveComparison(
        base=_estimates(base_mean, base_b, n, confidence),
        policy=_estimates(policy_mean, policy_b, n, confidence),
        difference=_estimates(base_mean - policy_mean, base_b - policy_b, n, confidence),
        crossing=interval(crossing(base_mean, policy_mean, ks), crossings, n, confidence),
    )


def crossing(base_k: ArrayLike, policy_k: ArrayLike, ks: Sequence[int]) -> float:
    """The budget at which the base takes the lead that grows largest, interpolated linearly in ln k.

    Where both curves come near 1 the lead is too small to change hands for a reason, so later changes do not count.
    inf when the base is never ahead (not overtaken within `ks`); the first k when it leads from there on; NaN when the
    curves never differ or no budget is defined for both. `ks` ascends; undefined budgets are skipped.
    """
    lead = np.asarray(base_k, dtype=np.float64) - np.asarray(policy_k, dtype=np.float64)
    decided = np.flatnonzero(np.isfinite(lead) & (lead != 0))
    if decided.size == 0:
        return float("nan")
    largest = decided[::-1][np.argmax(lead[decided][::-1])]
    if lead[largest] < 0:
        return float("inf")
    behind = decided[(lead[decided] < 0) & (decided < largest)]
    if behind.size == 0:
        return float(ks[0])
    before = behind[-1]
    after = decided[decided > before][0]
    share = lead[before] / (lead[before] - lead[after])
    return float(np.exp(np.log(ks[before]) + share * np.log(ks[after] / ks[before])))


def _check_pool(correct_p: ArrayLike, n_p: ArrayLike, ks: ArrayLike) -> tuple[Ints, Ints, Ints]:
    correct, n = np.broadcast_arrays(*(np.atleast_1d(np.asarray(a)) for a in (correct_p, n_p)))
    correct_int, n_int, budget = (np.asarray(a).astype(np.int64) for a in (correct, n, np.atleast_1d(ks)))
    if correct.ndim != 1 or np.any(correct_int != correct) or np.any(correct_int < 0) or np.any(correct_int > n_int):
        raise ConfigError("correct_p must hold one integer per problem, between 0 and its n")
    if np.any(budget < 1):
        raise ConfigError(f"every k must be at least 1, got {budget.min()}")
    return correct_int, n_int, budget


def _means(rows_pk: Floats) -> Floats:
    return rows_pk.mean(axis=0) if len(rows_pk) else np.full(rows_pk.shape[1], np.nan)


def _estimates(value_k: Floats, resampled_bk: Floats, n: int, confidence: float) -> list[Estimate]:
    return [interval(float(value), resampled_bk[:, i], n, confidence) for i, value in enumerate(value_k)]
