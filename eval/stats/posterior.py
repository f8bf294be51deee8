"""Support above a probability eps, by empirical Bayes: what the hits say about rates around and below 1/n.

Counting hits >= 1 treats one hit in 8192 like a thousand, and a miss like a rate of zero. Here each side's rates have a
prior of their own, the Beta(a, b) that fits that side's hits best (`stats.beta_binomial`), and the two rates of a unit
are tied by a Gaussian copula whose correlation fits the pairs of hits best: what the base often reaches the policy
often reaches too. "Rate above eps" (Def. 3.1 of arXiv 2507.14843) then holds on either side, or both, with a
probability, and the expected table of P, S, E, O is a sum over units. A flat prior per unit (Jeffreys) is wrong about
every rare unit in the same direction: the errors add up, and with several units per problem its intervals cover
nothing. Sides taken as independent get E - S right, but not E and S.

The joint posterior of a unit is computed on a grid of bins in its two rates: the exact posterior masses of each side
alone, times the copula's density, nearly constant within a bin. The thresholds are edges of bins.

Intervals are about the population of problems, as everywhere: each resample draws Dirichlet weights over problems, a
table from the units' posterior, and what the weights do to the five fitted parameters, to first order. In every other
resample a pseudo-unit of each kind keeps a count of zero from being called certain (its bound is the rule of three).

Units must be enumerated: a unit that nobody hit is given with its zeros, as in a pool, whose units are the listed
answers or one per problem. Far below 1/n the result depends on the shape of the Beta. That several answers of a
problem share its samples is ignored.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.beta_binomial import BetaBinomial, fit_beta_binomial, refit
from offleash.eval.stats.counts import check_draws, check_hits, check_problems
from offleash.eval.stats.intervals import Estimate, interval
from offleash.eval.stats.support import CELLS, METRICS, metrics

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BINS = 32  # of equal prior mass, on each side; thresholds are added
_SINKHORN = 40  # rounds
_STEP = 0.02  # of the parameters, for derivatives
_LARGEST = 3.0  # atanh of the largest correlation: .995
_TINY = 1e-100  # keeps a division finite where nothing is possible
_NOTHING = 1e-9  # of a unit
_BLOCK = 2_000_000  # numbers held in memory at once


class _Side(NamedTuple):
    """One model's distinct (hits, draws), which of them each unit has, and its prior."""

    prior: BetaBinomial
    hits: Ints
    n: Ints
    kind_u: Ints

    @classmethod
    def fitted(cls, hits_u: Ints, n_u: Ints) -> "_Side":
        kinds, kind_u = np.unique(np.stack([hits_u, n_u]), axis=1, return_inverse=True)
        return cls(fit_beta_binomial(hits_u, n_u), kinds[0], kinds[1], kind_u.ravel())

    def moved(self, log_a: float, log_b: float) -> "_Side":
        return self._replace(prior=BetaBinomial(self.prior.a * np.exp(log_a), self.prior.b * np.exp(log_b)))

    def quantiles(self) -> Floats:
        from scipy.special import betaincinv

        return betaincinv(*self.prior, np.arange(1, _BINS) / _BINS)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Of the bins: [bins] of the prior and [kinds, bins] of the posterior."""
        a, b = self.prior.posterior(self.hits, self.n)
        return _between(*self.prior, edges), _between(a[:, None], b[:, None], edges)


def posterior_dynamics(
    base_hits_u: ArrayLike,
    policy_hits_u: ArrayLike,
    n_base_u: ArrayLike,
    n_policy_u: ArrayLike,
    eps_e: Sequence[float],
    problem_u: ArrayLike | None = None,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 500,
) -> list[dict[str, Estimate]]:
    """P, S, E, O and the four metrics at each threshold `eps_e`, ascending, with intervals over problems.

    Counts are expected ones, and a metric's value is that of the expected counts. `problem_u` is the problem each unit
    belongs to (default: each its own).
    """
    hits = check_hits(base_hits_u, policy_hits_u)
    units = hits[0].size
    if not units or list(eps_e) != sorted(set(eps_e)) or not all(0 < eps < 1 for eps in eps_e):
        raise ConfigError(f"units and ascending thresholds in (0, 1) are needed, got {units} units and {list(eps_e)}")
    names, index_u = np.unique(check_problems(problem_u, units), return_inverse=True)
    pair, tie = _fitted(*hits, n_base_u, n_policy_u, eps_e)
    cells_eu4 = pair.cells(tie)
    resampled = _resampled_tables(pair, tie, cells_eu4, index_u, resamples, rng)
    found = []
    for table_4, table_b4 in zip(_tables(cells_eu4), resampled, strict=True):
        values = dict(zip(CELLS, table_4, strict=True)) | metrics(table_4)
        spread = dict(zip(CELLS, table_b4.T, strict=True)) | metrics(table_b4)
        found.append({m: interval(float(values[m]), spread[m], len(names), confidence) for m in CELLS + METRICS})
    return found


def expected_metrics(
    base_hits_u: ArrayLike, policy_hits_u: ArrayLike, n_base_u: ArrayLike, n_policy_u: ArrayLike, eps: float
) -> dict[str, float]:
    """The four metrics as `posterior_dynamics` has them at one threshold, without intervals. NaN without units."""
    hits = check_hits(base_hits_u, policy_hits_u)
    if not hits[0].size:
        return dict.fromkeys(METRICS, np.nan)
    pair, tie = _fitted(*hits, n_base_u, n_policy_u, [eps])
    return {name: float(value) for name, value in metrics(_tables(pair.cells(tie))[0]).items()}


def _tables(cells_eu4: Floats) -> Floats:
    """[thresholds, 4]. A ratio of counts that are nothing but rounding would be any number: they are 0."""
    tables_e4 = cells_eu4.sum(axis=1)
    return np.where(tables_e4 < _NOTHING, 0.0, tables_e4)


def _fitted(
    base_hits: Ints, policy_hits: Ints, n_base_u: ArrayLike, n_policy_u: ArrayLike, eps_e: Sequence[float]
) -> tuple["_Pair", float]:
    base, policy = check_draws("base", base_hits, n_base_u), check_draws("policy", policy_hits, n_policy_u)
    pair = _Pair(_Side.fitted(*base), _Side.fitted(*policy), np.asarray(eps_e))
    return pair, pair.fit()


class _Pair:
    """Both sides' masses on one grid, for any correlation."""

    def __init__(self, base: _Side, policy: _Side, eps_e: Floats) -> None:
        self.base, self.policy, self.eps_e = base, policy, eps_e
        self.edges = np.unique(np.concatenate([[0, 1], base.quantiles(), policy.quantiles(), eps_e]))
        (self.base_g, self.base_kg), (self.policy_g, policy_kg) = base.masses(self.edges), policy.masses(self.edges)
        self.policy_ug = policy_kg[policy.kind_u]

    def density(self, tie: float) -> Floats:
        """[bins, bins]: the copula's density, by which rates of independent sides become more or less likely.

        The Gaussian kernel at the bins' middles, scaled so that each side's masses are exactly its own (Sinkhorn).
        `tie` is atanh of the correlation.
        """
        from scipy.special import ndtri

        base_z, policy_z = (ndtri(np.clip(np.cumsum(g) - g / 2, 1e-9, 1 - 1e-9)) for g in (self.base_g, self.policy_g))
        r = np.tanh(tie)
        square = base_z[:, None] ** 2 + policy_z**2
        kernel = np.exp((2 * r * base_z[:, None] * policy_z - r * r * square) / (2 * (1 - r * r)))
        by_base = np.ones(base_z.size)
        for _ in range(_SINKHORN):
            by_policy = 1 / np.maximum(kernel.T @ (self.base_g * by_base), _TINY)
            by_base = 1 / np.maximum(kernel @ (self.policy_g * by_policy), _TINY)
        return by_base[:, None] * kernel * by_policy

    def log_evidence(self, tie: float) -> Floats:
        """Of each unit: ln of how much likelier its pair of hits is than with independent sides."""
        weight_u = self._weights(self.base_kg @ self.density(tie)).sum(axis=1)
        return np.log(np.maximum(weight_u, _TINY))

    def fit(self) -> float:
        """The tie of maximum likelihood."""
        from scipy.optimize import minimize_scalar

        bounds = (-_LARGEST, _LARGEST)
        return float(minimize_scalar(lambda tie: -float(self.log_evidence(tie).sum()), bounds=bounds).x)

    def cells(self, tie: float) -> Floats:
        """[thresholds, units, 4]: the posterior probability of P, S, E, O of each unit."""
        density = self.density(tie)
        cells = np.empty((self.eps_e.size, self.base.kind_u.size, 4))
        for e, at in enumerate(np.searchsorted(self.edges, self.eps_e)):
            above_ug = self._weights(self.base_kg[:, at:] @ density[at:])
            below_ug = self._weights(self.base_kg[:, :at] @ density[:at])
            parts = (above_ug[:, at:], above_ug[:, :at], below_ug[:, at:], below_ug[:, :at])
            cells[e] = np.stack([part.sum(axis=1) for part in parts], axis=1)
        return cells / np.maximum(cells.sum(axis=2, keepdims=True), _TINY)

    def _weights(self, base_kg: Floats) -> Floats:
        return base_kg[self.base.kind_u] * self.policy_ug


def _between(a: ArrayLike, b: ArrayLike, edges: Floats) -> Floats:
    """Masses of Beta(a, b) between edges, each from the tail that keeps its digits."""
    from scipy.special import betainc

    below, above = betainc(a, b, edges), betainc(b, a, 1 - edges)
    return np.maximum(np.where(below[..., 1:] < 0.5, np.diff(below), -np.diff(above)), 0)


def _resampled_tables(
    pair: _Pair, tie: float, cells_eu4: Floats, problem_u: Ints, resamples: int, rng: np.random.Generator
) -> Floats:
    """[thresholds, resamples, 4]: tables of resampled problems, drawn from the posterior, with priors that move too."""
    problems, thresholds = int(problem_u.max()) + 1, len(cells_eu4)
    slopes_xe4 = _slopes(pair, tie)
    cumulated_eu3 = np.cumsum(cells_eu4, axis=2)[:, :, :3]
    tables = np.empty((thresholds, resamples, 4))
    step = max(1, _BLOCK // problem_u.size)
    for start in range(0, resamples, step):
        weight_bp = rng.standard_exponential((min(step, resamples - start), problems))
        weight_bp *= problems / weight_bp.sum(axis=1, keepdims=True)
        moves_bx = _moves(pair, tie, problem_u, weight_bp)
        weight_bu, draw_bu = weight_bp[:, problem_u], rng.random((len(weight_bp), problem_u.size))
        for e in range(thresholds):
            above = [np.einsum("bu,bu->b", weight_bu, draw_bu > cumulated_eu3[e, :, i]) for i in range(3)]
            sums = np.stack([weight_bu.sum(axis=1), *above, np.zeros(len(weight_bu))], axis=1)
            table_b4 = np.maximum(-np.diff(sums, axis=1) + moves_bx @ slopes_xe4[:, e], 0)
            pseudo = rng.standard_exponential(table_b4.shape) * (rng.random(table_b4.shape) < 0.5)
            share_b4 = (table_b4 + pseudo) / np.maximum((table_b4 + pseudo).sum(axis=1, keepdims=True), _TINY)
            tables[e, start : start + step] = share_b4 * sums[:, :1]  # pseudo-units are no more units
    return tables


def _moves(pair: _Pair, tie: float, problem_u: Ints, weight_bp: Floats) -> Floats:
    """[resamples, 5]: how far the weights move ln a and ln b of each side, and the tie."""
    moves = []
    for side in (pair.base, pair.policy):
        found = refit(side.prior, side.hits[side.kind_u], side.n[side.kind_u], problem_u, weight_bp)
        moves += [np.log(values_b / value) for values_b, value in zip(found, side.prior, strict=True)]
    less, here, more = (pair.log_evidence(tie + step) for step in (-_STEP, 0, _STEP))
    bend = float((2 * here - less - more).sum()) / _STEP**2
    slope_p = np.bincount(problem_u, (more - less) / (2 * _STEP), weight_bp.shape[1])
    known = bend > 1e-3 and abs(tie) < _LARGEST - 0.1
    moves.append(np.clip((weight_bp - 1) @ slope_p / bend, -1, 1) if known else np.zeros(len(weight_bp)))
    return np.stack(moves, axis=1)


def _slopes(pair: _Pair, tie: float) -> Floats:
    """[5, thresholds, 4]: by how much the expected tables change with each of the parameters that `_moves` moves."""

    def table(step: Floats) -> Floats:
        moved = _Pair(pair.base.moved(*step[:2]), pair.policy.moved(*step[2:4]), pair.eps_e)
        return moved.cells(tie + step[4]).sum(axis=1)

    return np.stack([(table(step) - table(-step)) / (2 * _STEP) for step in _STEP * np.eye(5)])
