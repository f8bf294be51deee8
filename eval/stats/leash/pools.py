"""The leash line from samples: what k draws of the reweighted base would show beside a base pool.

The base's probabilities are not known, its hits are. Rates of its units are drawn from their posteriors
(`stats.beta_binomial`), reweighted exactly (`leash.tilt`) to the policy's pass@1, and k draws of the result hit a unit
with a known probability. A problem's units share its draws, so what its rates sum to is drawn from the posterior of
its correct samples, and the units' rates are scaled to that: rates drawn one by one could sum to 1 or more, and a
problem that is always solved stays so at every weight. Against the units that the base's k draws hit, that gives the
expected P, S, E, O of the line: given this base pool, as for the noise of a second sample (`stats.bands`), which is
the line at the base's own pass@1.

What the line gains comes from units that the base has hit seldom or never, and a weight w brings up rates down to about
1/(w n), of which n draws say little. So the line's upper bound does not rest on the fit there. The sum of m q over the
units that were never hit, m being how much a unit grows, is estimated without any model by the units that were hit once
(Good and Turing): the sum of m/n over them, one more for those that chance withheld. However it is divided, k draws hit
no more of them than if they were all equally likely (Jensen). With several times as many draws of the base as k this
bound is close to the estimate; with n = k it is far above, and little can be called an expansion.

Units must be enumerated, as in a pool: its listed answers, or one per problem. A unit is in support at one hit.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.stats.beta_binomial import Rates
from offleash.eval.stats.counts import check_counts, check_draws, check_hits, check_problems
from offleash.eval.stats.exact_support import exact_pass_at_k, hit_by
from offleash.eval.stats.leash.against import AgainstLine, Weighted, against, resample
from offleash.eval.stats.leash.tilt import factors, solve, sums_by
from offleash.eval.stats.subsets import in_support
from offleash.eval.stats.support import cells_of, metrics

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_DRAWS = 64  # of the rates, behind a value


class _Rates(NamedTuple):
    """Of the units and, where a problem has several, of the problems."""

    units: Rates
    problems: Rates | None
    index_u: Ints

    @classmethod
    def fitted(cls, hits_u: Ints, n_u: Ints, index_u: Ints) -> "_Rates":
        correct_p = np.bincount(index_u, hits_u).astype(np.int64)
        n_p = np.zeros_like(correct_p)
        n_p[index_u] = n_u
        several = correct_p.size < index_u.size
        return cls(Rates.fitted(hits_u, n_u), Rates.fitted(correct_p, n_p) if several else None, index_u)

    def draw(self, rows: int, rng: np.random.Generator) -> Floats:
        """[rows, units]"""
        rates_bu = self.units.draw(rows, rng)
        return rates_bu if self.problems is None else self._scaled(rates_bu, self.problems.draw(rows, rng))

    def draw_weighted(self, weight_bp: Floats, rng: np.random.Generator) -> Floats:
        """The same, each row fitted with its own weights of the problems."""
        rates_bu = self.units.draw_weighted(weight_bp[:, self.index_u], rng)
        return (
            rates_bu if self.problems is None else self._scaled(rates_bu, self.problems.draw_weighted(weight_bp, rng))
        )

    def _scaled(self, rates_bu: Floats, sum_bp: Floats) -> Floats:
        drawn_bp = sums_by(rates_bu, self.index_u)
        scale_bp = np.divide(sum_bp, drawn_bp, out=np.ones_like(sum_bp), where=drawn_bp > 0)
        return rates_bu * scale_bp[:, self.index_u]


class PoolLine(NamedTuple):
    """What k draws of the reweighted base are expected to show, beside the base's own pool."""

    cells: Floats
    """P, S, E, O."""
    nscr: float
    pass_at_k: Mapping[int, float]
    log_weight: float
    """ln w = 1/beta: the median over the rates drawn."""


def pool_line(
    base_hits_u: ArrayLike,
    n_base_u: ArrayLike,
    problem_u: ArrayLike,
    pass_at_1: float,
    *,
    k_u: ArrayLike | None = None,
    ks: Iterable[int] = (),
) -> PoolLine:
    """KL-optimal reweighting of the base at this pass@1, from a base pool. Support is at `k_u` draws (default: all)."""
    _, index_u = np.unique(check_problems(problem_u, np.size(base_hits_u)), return_inverse=True)
    hits, n = check_draws("base", base_hits_u, n_base_u, index_u)
    k = n if k_u is None else check_counts("k", k_u)
    return _line(_Rates.fitted(hits, n, index_u), index_u, pass_at_1, in_support(hits, n, k), k, ks)


def pool_against_line(
    base_hits_u: ArrayLike,
    policy_hits_u: ArrayLike,
    n_base_u: ArrayLike,
    n_policy_u: ArrayLike,
    problem_u: ArrayLike,
    *,
    k_u: ArrayLike | None = None,
    ks: Iterable[int] = (),
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 500,
) -> tuple[PoolLine, AgainstLine]:
    """The line at the policy's pass@1, and NSCR at k draws a side (default: what both have) beside the line's."""
    _, index_u = np.unique(check_problems(problem_u, np.size(base_hits_u)), return_inverse=True)
    hits, policy = check_hits(base_hits_u, policy_hits_u)
    (hits, n), (policy, n_policy) = (
        check_draws("base", hits, n_base_u, index_u), check_draws("policy", policy, n_policy_u, index_u)
    )  # fmt: skip
    k = np.minimum(n, n_policy) if k_u is None else np.broadcast_to(check_counts("k", k_u), n.shape)
    in_base, in_policy = in_support(hits, n, k), in_support(policy, n_policy, k)
    policy_p: Floats = np.bincount(index_u, policy / n_policy).astype(np.float64)
    rates = _Rates.fitted(hits, n, index_u)
    line = _line(rates, index_u, float(policy_p.mean()), in_base, k, ks)

    def reached(weighted: Weighted) -> tuple[Floats, Floats]:
        base_bu = rates.draw_weighted(weighted.weight_bp, rng)
        grown_bu = _grown(base_bu, index_u, weighted)[0]
        line_bu = hit_by(base_bu * grown_bu, k)
        return line_bu, _at_most(line_bu, grown_bu, weighted.weight_bp[:, index_u], hits, n, k, rng)

    spread = resample(in_base, in_policy, policy_p, index_u, line=reached, resamples=resamples, rng=rng)
    cells_4 = cells_of(in_base, in_policy).sum(axis=0)
    nscr = float(metrics(cells_4)["nscr"])
    # Of all draws: a unit that the base has hit is not reached anew because fewer of its draws are compared.
    new = float(np.count_nonzero((hits == 0) & (policy > 0)))
    found = against(nscr, line.nscr, spread, new, line.log_weight, policy_p.size, confidence)
    return line, found


def _line(
    rates: _Rates,
    index_u: Ints,
    pass_at_1: float,
    in_base_u: Floats,
    k_u: Ints,
    ks: Iterable[int],
) -> PoolLine:
    base_bu = rates.draw(_DRAWS, np.random.default_rng(0))  # one pool has one line, wherever it is shown
    weighted = Weighted(np.ones((_DRAWS, int(index_u.max()) + 1)), np.full(_DRAWS, float(pass_at_1)))
    grown_bu, log_weight_b = _grown(base_bu, index_u, weighted)
    line_bu = base_bu * grown_bu
    cells_4 = cells_of(in_base_u, hit_by(line_bu, k_u).mean(axis=0)).sum(axis=0)
    budgets = list(ks)
    pass_at_k = exact_pass_at_k(_sums(line_bu, index_u).ravel(), budgets).tolist() if budgets else []
    return PoolLine(
        cells=cells_4,
        nscr=float(metrics(cells_4)["nscr"]),
        pass_at_k=dict(zip(budgets, pass_at_k, strict=True)),
        log_weight=float(np.median(log_weight_b)),
    )


def _grown(base_bu: Floats, index_u: Ints, weighted: Weighted) -> tuple[Floats, Floats]:
    """By how much the reweighting makes each unit more likely, [rows, units], and ln w of each row."""
    base_bp = _sums(base_bu, index_u)
    log_weight_b = solve(base_bp, weighted.weight_bp, weighted.pass_at_1_b)
    return factors(base_bp, log_weight_b[:, None])[:, index_u], log_weight_b


def _sums(rates_bu: Floats, index_u: Ints) -> Floats:
    return np.minimum(sums_by(rates_bu, index_u), 1.0)  # more by rounding only


def _at_most(
    line_bu: Floats,
    grown_bu: Floats,
    weight_bu: Floats,
    hits_u: Ints,
    n_u: Ints,
    k_u: Ints,
    rng: np.random.Generator,
) -> Floats:
    """The same with as many of the units that the base never hit as any rates allow."""
    never, once = hits_u == 0, hits_u == 1
    if not never.any():
        return line_bu
    units_b1 = weight_bu[:, never].sum(axis=1, keepdims=True)
    per_draw_bu = weight_bu * grown_bu / n_u
    withheld_b1 = rng.standard_exponential(units_b1.shape) * per_draw_bu[:, never].sum(axis=1, keepdims=True) / units_b1
    mean_b1 = np.minimum((per_draw_bu[:, once].sum(axis=1, keepdims=True) + withheld_b1) / units_b1, 1.0)
    found_b1 = (weight_bu * line_bu)[:, never].sum(axis=1, keepdims=True) / units_b1
    most_bu = line_bu.copy()
    most_bu[:, never] = np.maximum(hit_by(mean_b1, k_u[never]), found_b1)
    return most_bu
