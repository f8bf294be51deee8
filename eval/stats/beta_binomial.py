"""Rates that differ between units: a Beta(a, b) fitted to their hits by maximum likelihood (empirical Bayes).

If a unit's rate is drawn from Beta(a, b) and n samples hit it c times, c is beta-binomial. The two parameters are
fitted to all units of a pool; a unit's own rate then has the posterior Beta(a + c, b + n - c), and a fresh unit is
missed by k samples with probability B(a, b + k) / B(a, b). A flat prior per unit (Jeffreys) says of a hundred units
with one hit each that most rates are near 1/n; the fit says what the other units make likely.

Where units are known only from being hit (answers nobody enumerated), those without a hit are missing: the likelihood
is then that of the zero-truncated distribution. Its limit a -> 0 is Fisher's logarithmic series.

The fit is a model. What it says about rates far below 1/n is extrapolation and depends on the shape of the Beta.

`Rates` has more freedom: a mixture of Betas with means a factor of two apart, from 1e-8 up, of which only the shares
are fitted (EM, from equal shares). With rates spread over orders of magnitude, or half of them near zero, one Beta is
off by half in what a second sample would gain, and the leash line by .1 and more (`bench/calibration.py --table
leash`). The likelihood is concave in the shares, so the start matters only where the hits say nothing, as far below
1/n: there the equal shares stay. A unit with c hits in n draws has a mixture of Betas again, to draw rates from.
"""

from collections.abc import Sequence
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


_SHAPE = 3.0  # of each component: a relative spread of about 1/sqrt(3)
_MEAN = 1 / (1 + np.exp(-np.arange(np.log(1e-8), 4.2, np.log(2))))
_RULED_OUT = 1e-9
_A = np.where(_MEAN < 0.5, _SHAPE, _SHAPE * _MEAN / (1 - _MEAN))
_B = np.where(_MEAN < 0.5, _SHAPE * (1 - _MEAN) / _MEAN, _SHAPE)
_ROUNDS, _MORE_ROUNDS = 300, 30


class Rates(NamedTuple):
    """The fitted shares, and each unit's hits."""

    share_g: Floats
    hits_u: Ints
    n_u: Ints
    kind_u: Ints
    """Which of the distinct (hits, draws) each unit has."""
    likelihood_kg: Floats
    """Of each kind under each component, up to a factor of the kind."""

    @classmethod
    def fitted(cls, hits_u: ArrayLike, n_u: ArrayLike) -> "Rates":
        hits, n = check_draws("base", hits_u, n_u)
        kinds_2k, kind_u, times_k = np.unique(np.stack([hits, n]), axis=1, return_inverse=True, return_counts=True)
        c, m = kinds_2k[0][:, None], kinds_2k[1][:, None]
        log_kg = _betaln(_A + c, _B + m - c) - _betaln(_A, _B)
        likelihood_kg = np.exp(log_kg - log_kg.max(axis=1, keepdims=True))
        even_g = np.full((1, _MEAN.size), 1 / _MEAN.size)
        share_g = _em(likelihood_kg, times_k[None].astype(np.float64), even_g, _ROUNDS)[0]
        return cls(share_g, hits, n, kind_u.ravel(), likelihood_kg)

    def fewer_again(self, again_u: ArrayLike, threshold: int = 1, share_bg: Floats | None = None) -> Floats:
        """Probability that `again_u` further draws hit each unit fewer than `threshold` times; or for other shares."""
        columns = np.stack([self.hits_u, self.n_u, np.broadcast_to(again_u, self.hits_u.shape), self.kind_u])
        (hits, n, again, kind), which_u = np.unique(columns, axis=1, return_inverse=True)
        chance_kg = fewer_hits(_A + hits[:, None], _B + (n - hits)[:, None], again[:, None], threshold)
        likelihood_gk = self.likelihood_kg[kind].T
        share = self.share_g if share_bg is None else share_bg
        fewer: Floats = (share @ (likelihood_gk * chance_kg.T)) / (share @ likelihood_gk)
        return fewer[..., which_u.ravel()]

    def fewer_than_each(self, again: int, thresholds: Sequence[int]) -> Floats:
        """[thresholds, units]: `fewer_again` at several thresholds, in one pass over the number of hits.

        Components that a unit's hits all but rule out are left out: it takes a small part of the time.
        """
        from scipy.special import gammaln

        j = np.arange(min(max(thresholds), again + 1))
        last_t = np.minimum(thresholds, len(j)) - 1
        ways_j = gammaln(again + 1) - gammaln(j + 1) - gammaln(again - j + 1)
        below_tk = np.empty((len(thresholds), len(self.likelihood_kg)))
        for kind, u in enumerate(np.unique(self.kind_u, return_index=True)[1]):
            weight_g = self.share_g * self.likelihood_kg[kind]
            weight_g = weight_g / weight_g.sum()
            there = weight_g > _RULED_OUT
            a, b = (_A + self.hits_u[u])[there, None], (_B + self.n_u[u] - self.hits_u[u])[there, None]
            chance_gj = np.exp(ways_j + _betaln(a + j, b + again - j) - _betaln(a, b))
            below_tk[:, kind] = np.cumsum(weight_g[there] @ chance_gj)[last_t]
        return np.minimum(below_tk, 1.0)[:, self.kind_u]

    def moments_again(self, again_u: ArrayLike, share_bg: Floats) -> tuple[Floats, Floats]:
        """[rows, units]: mean and variance of the share of `again_u` further draws that hit each unit."""
        a, b = _A + self.hits_u[:, None], _B + (self.n_u - self.hits_u)[:, None]
        again = np.broadcast_to(again_u, self.hits_u.shape)[:, None]
        mean_ug = a / (a + b)
        square_ug = mean_ug * ((1 - mean_ug) * (a + b + again) / (again * (a + b + 1)) + mean_ug)
        weight_ug = self.likelihood_kg[self.kind_u]
        total_bu = share_bg @ weight_ug.T
        mean_bu, square_bu = (share_bg @ (weight_ug * values).T / total_bu for values in (mean_ug, square_ug))
        return mean_bu, square_bu - mean_bu**2

    def draw(self, rows: int, rng: np.random.Generator) -> Floats:
        """[rows, units]: rates from the units' posteriors."""
        return self._drawn(np.broadcast_to(self.share_g, (rows, self.share_g.size)), rng)

    def draw_weighted(self, weight_bu: Floats, rng: np.random.Generator) -> Floats:
        """The same, each row after a few rounds of EM with its own weights of the units."""
        return self._drawn(self.refitted(weight_bu), rng)

    def refitted(self, weight_bu: Floats, rounds: int = _MORE_ROUNDS) -> Floats:
        """[rows, components]: the shares after some rounds of EM with each row's weights of the units."""
        order = np.argsort(self.kind_u, kind="stable")
        starts = np.searchsorted(self.kind_u[order], np.arange(len(self.likelihood_kg)))
        times_bk = np.add.reduceat(weight_bu[:, order], starts, axis=1)
        start_bg = np.broadcast_to(self.share_g, (len(weight_bu), self.share_g.size))
        return _em(self.likelihood_kg, times_bk, start_bg, rounds)

    def _drawn(self, share_bg: Floats, rng: np.random.Generator) -> Floats:
        left_bu = rng.random((len(share_bg), self.hits_u.size)) * (share_bg @ self.likelihood_kg.T)[:, self.kind_u]
        component_bu = np.zeros(left_bu.shape, np.int64)
        for g in range(_MEAN.size - 1):  # a loop here: [rows, units, components] would not fit
            left_bu -= share_bg[:, g, None] * self.likelihood_kg[self.kind_u, g]
            component_bu += left_bu > 0
        return rng.beta(_A[component_bu] + self.hits_u, _B[component_bu] + self.n_u - self.hits_u)


def _em(likelihood_kg: Floats, times_bk: Floats, share_bg: Floats, rounds: int) -> Floats:
    """Shares of the components that make the hits likelier, round by round, for each row of weights of the kinds."""
    total_b1 = times_bk.sum(axis=1, keepdims=True)
    for _ in range(rounds):
        evidence_bk = np.maximum(share_bg @ likelihood_kg.T, 1e-300)
        share_bg = share_bg * ((times_bk / evidence_bk) @ likelihood_kg) / total_b1
    return share_bg
