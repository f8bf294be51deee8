"""Rates that differ between units: a Beta(a, b) fitted to their hits by maximum likelihood (empirical Bayes).

If a unit's rate is drawn from Beta(a, b) and n samples hit it c times, c is beta-binomial. The two parameters are
fitted to all units of a pool; a unit's own rate then has the posterior Beta(a + c, b + n - c), and a fresh unit is
missed by k samples with probability B(a, b + k) / B(a, b). A flat prior per unit (Jeffreys) says of a hundred units
with one hit each that most rates are near 1/n; the fit says what the other units make likely.

Where units are known only from being hit (answers nobody enumerated), those without a hit are missing: the likelihood
is then that of the zero-truncated distribution. Its limit a -> 0 is Fisher's logarithmic series.

The fit is a model. What it says about rates far below 1/n is extrapolation and depends on the shape of the Beta.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.counts import check_draws

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BOUNDS = ((np.log(1e-6), np.log(1e6)), (np.log(1e-6), np.log(1e8)))  # of ln a and ln b
_STARTS = ((0.1, 1.0), (1.0, 1.0), (0.3, 30.0), (1e-3, 1.0), (30.0, 30.0))


class BetaBinomial(NamedTuple):
    """The distribution of rates over units: Beta(a, b)."""

    a: float
    b: float

    def miss(self, k: ArrayLike) -> Floats:
        """Probability that k samples of a unit drawn at random all miss it: B(a, b + k) / B(a, b)."""
        return np.exp(_log_miss(self.a, self.b, np.asarray(k, dtype=np.float64)))

    def posterior(self, hits_u: ArrayLike, n_u: ArrayLike) -> tuple[Floats, Floats]:
        """The two parameters of each unit's own Beta, given its hits in n samples."""
        hits, n = np.broadcast_arrays(np.asarray(hits_u, dtype=np.float64), np.asarray(n_u, dtype=np.float64))
        return self.a + hits, self.b + n - hits


def miss_again(fit: BetaBinomial, hits_u: ArrayLike, n_u: ArrayLike, k_u: ArrayLike) -> Floats:
    """Probability that k further samples all miss a unit that was hit `hits_u` times in `n_u` samples."""
    a, b = fit.posterior(hits_u, n_u)
    return np.exp(_log_miss(a, b, np.asarray(k_u, dtype=np.float64)))


def fewer_hits(a: ArrayLike, b: ArrayLike, k: ArrayLike, threshold: int = 1) -> Floats:
    """Probability that k samples of a unit with a rate from Beta(a, b) hit it fewer than `threshold` times."""
    from scipy.special import betaln, gammaln

    a, b, k = np.broadcast_arrays(*(np.asarray(values, dtype=np.float64) for values in (a, b, k)))
    chance = np.zeros(a.shape)
    for j in range(threshold):
        rest = np.maximum(k - j, 0)
        ways = gammaln(k + 1) - gammaln(j + 1) - gammaln(rest + 1)
        chance += np.where(k >= j, np.exp(ways + betaln(a + j, b + rest) - betaln(a, b)), 0.0)
    return np.minimum(chance, 1.0)


def fit_beta_binomial(hits_u: ArrayLike, n_u: ArrayLike, *, truncated: bool = False) -> BetaBinomial:
    """Beta(a, b) of the units' rates by maximum likelihood.

    Args:
        hits_u: how many samples hit each unit.
        n_u: the samples of each unit's problem, or one number for all.
        truncated: the units are those that were hit at all; units without a hit are ignored if any are given.
    """
    from scipy.optimize import minimize
    from scipy.special import digamma

    hits, n, times = _kinds(hits_u, n_u, truncated)

    def loss(log_ab: Floats) -> tuple[float, Floats]:
        """Mean negative log-likelihood and its slope in ln a and ln b."""
        a, b = np.exp(log_ab)
        log_p = _betaln(a + hits, b + n - hits) - _betaln(a, b)
        both = digamma(a + b + n) - digamma(a + b)
        slope_a, slope_b = digamma(a + hits) - digamma(a) - both, digamma(b + n - hits) - digamma(b) - both
        if truncated:
            # As a sum: for small a the two beta functions agree to more digits than they have.
            log_miss = -np.cumsum(np.log1p(a / (b + np.arange(int(n.max())))))[n.astype(np.int64) - 1]
            log_p = log_p - np.log(-np.expm1(log_miss))
            odds = -np.exp(log_miss) / np.expm1(log_miss)  # of being missed
            slope_a, slope_b = slope_a - odds * both, slope_b + odds * (digamma(b + n) - digamma(b) - both)
        slope = np.array([a * (times @ slope_a), b * (times @ slope_b)])
        return -float(times @ log_p) / float(times.sum()), -slope / float(times.sum())

    starts = [np.log(start) for start in _STARTS]
    fits = (minimize(loss, start, jac=True, method="L-BFGS-B", bounds=_BOUNDS) for start in starts)
    best = min(fits, key=lambda fit: fit.fun)
    a, b = np.exp(best.x)
    return BetaBinomial(float(a), float(b))


def refit(
    fit: BetaBinomial, hits_u: ArrayLike, n_u: ArrayLike, problem_u: Ints, weight_bp: Floats
) -> tuple[Floats, Floats]:
    """`a` and `b` of many fits to the same units, with weights for their problems: one Newton step from `fit` each.

    Weights average 1, so equal ones leave the fit where it is. To first order this is the weighted maximum of the
    likelihood, at the cost of a product of matrices. A direction that the hits do not determine keeps its value.
    """
    from scipy.special import digamma, polygamma

    hits, n = np.broadcast_arrays(np.asarray(hits_u, dtype=np.float64), np.asarray(n_u, dtype=np.float64))
    a, b = fit
    both = digamma(a + b + n) - digamma(a + b)
    slope_u2 = np.stack([a * (digamma(a + hits) - digamma(a) - both),
                         b * (digamma(b + n - hits) - digamma(b) - both)], axis=1)  # fmt: skip

    def curve(x: Floats | float) -> Floats:
        return polygamma(1, x)

    shared = curve(a + b + n) - curve(a + b)
    bend_a = slope_u2[:, 0] + a * a * (curve(a + hits) - curve(a) - shared)
    bend_b = slope_u2[:, 1] + b * b * (curve(b + n - hits) - curve(b) - shared)
    bend_ab = -a * b * shared
    information = -np.array([[bend_a.sum(), bend_ab.sum()], [bend_ab.sum(), bend_b.sum()]])
    slope_p2 = np.stack([np.bincount(problem_u, slope_u2[:, i], weight_bp.shape[1]) for i in range(2)], axis=1)
    known, axes = np.linalg.eigh(information)
    inverse = np.where(known > 1e-6 * max(float(known.max()), 1.0), 1 / np.where(known > 0, known, 1.0), 0.0)
    move_b2 = (weight_bp - 1) @ slope_p2 @ (axes * inverse) @ axes.T
    log_ab = np.log([a, b]) + move_b2
    a_b, b_b = (np.exp(np.clip(log_ab[:, i], *_BOUNDS[i])) for i in range(2))
    return a_b, b_b


def _kinds(hits_u: ArrayLike, n_u: ArrayLike, truncated: bool) -> tuple[Floats, Floats, Floats]:
    """Distinct (hits, n) and how many units have them."""
    hits, n = (counts.astype(np.float64) for counts in check_draws("a unit's", hits_u, n_u))
    if truncated:
        hits, n = hits[hits > 0], n[hits > 0]
    if not hits.size:
        raise ConfigError("there is no unit to fit a distribution of rates to")
    kinds, times = np.unique(np.stack([hits, n]), axis=1, return_counts=True)
    return kinds[0], kinds[1], times.astype(np.float64)


def _log_miss(a: float | Floats, b: float | Floats, k: Floats) -> Floats:
    return _betaln(a, b + k) - _betaln(a, b)


def _betaln(a: float | Floats, b: float | Floats) -> Floats:
    from scipy.special import betaln

    return betaln(a, b)
