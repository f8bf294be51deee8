"""pass@k and its relatives at every budget from one pool.

pass@k is the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, eq. 1): of n samples c are correct, and
1 - C(n-c, k)/C(n, k) is the share of k-subsets that hold a correct one. The ratio is a running product over k, so all
budgets 1..n of a problem cost n multiplications and lose no digits to logarithms. k > n is undefined: NaN.

cover@tau (Dragoi et al. 2025, arXiv 2510.08325, "Beyond Pass@k") is the fraction of problems that a model solves with a
probability of at least tau: the mean of 1{p >= tau}, with p estimated by c/n. A small tau asks for breadth, a large one
for reliability; pass@k is an average of it over tau with nearly all its weight near 0. The estimate is a plug-in: an
indicator of p has no unbiased estimator, and a problem whose p lies within 1/sqrt(n) of tau may fall on either side.
Compare pools at the same k: of n samples, what k of them show on average.

Two curves are compared in `offleash.eval.stats.curves`. Asked for by verl#7240, limit-of-RLVR#10 and others.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.counts import check_budgets, check_counts, check_draws
from offleash.eval.stats.subsets import in_support

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TAUS = (0.2, 0.8)
"""Of cover@tau, what is reported: breadth and reliability."""
_BLOCK = 2_000_000  # products held in memory at once
_ROUNDING = 1e-9


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
    correct, n = (np.atleast_1d(counts) for counts in check_draws("correct_p", correct_p, n_p, least=0))
    budget = check_budgets(ks)
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
    counts, correct = check_counts("counts_a", counts_a), np.asarray(correct_a, dtype=bool)
    if counts.ndim != 1 or correct.ndim != 1 or counts.size - correct.size not in (0, 1):
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
