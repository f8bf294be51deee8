"""Support dynamics: the 2x2 of base support x policy support, and how far a finite number of samples can see.

From "The Invisible Leash" (arXiv 2507.14843v4), Definitions 3.1-3.3 and Appendix C.4. A unit is a (problem, correct
answer class); it is in a model's support when at least `threshold` of the samples hit it. Units only in the base's
support are Shrunk, only in the policy's Expanded, in both Preserved, in neither Out.

What is undefined is NaN, never 0: SRR without any base support (P + S = 0), NDR without any policy support (P + E = 0),
NSCR when every unit is Out, SDS when P = 0 and either S or E is 0. With P > 0 and E = 0 the SDS is a true 0, as the
paper prints it.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.counts import check_draws, check_hits, check_problems, check_threshold
from offleash.eval.stats.intervals import Estimate, interval, weighted_means

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

CELLS = ("preserved", "shrunk", "expanded", "out")
METRICS = ("srr", "ndr", "sds", "nscr")
STABLE_HITS = 5
"""A unit hit this often on one side and missed on the other is unlikely to be noise (p = .03 at equal budgets)."""
EPS = 1e-3
"""The probability above which a unit is in support for estimators that reach below the detection limit."""


@dataclass(frozen=True, slots=True)
class Dynamics:
    """Counts of units by what happened to them, and the paper's four metrics of those counts."""

    preserved: int
    shrunk: int
    expanded: int
    out: int

    @property
    def total(self) -> int:
        return self.preserved + self.shrunk + self.expanded + self.out

    @property
    def srr(self) -> float:
        """Support retention rate P / (P + S): the fraction of base units retained."""
        return self._metric("srr")

    @property
    def ndr(self) -> float:
        """Net discovery rate E / (P + E): the fraction of policy units that are new."""
        return self._metric("ndr")

    @property
    def sds(self) -> float:
        """Support dynamic score: the harmonic mean of SRR and NDR."""
        return self._metric("sds")

    @property
    def nscr(self) -> float:
        """Net support change rate (E - S) / (P + E + S): (gained - lost) / union."""
        return self._metric("nscr")

    def _metric(self, name: str) -> float:
        return float(metrics([self.preserved, self.shrunk, self.expanded, self.out])[name])


def metrics(counts_x4: ArrayLike) -> dict[str, Floats]:
    """SRR, NDR, SDS and NSCR of many tables at once. `counts_x4`: [..., 4] as (P, S, E, O), fractions allowed."""
    p, s, e, _ = np.moveaxis(np.asarray(counts_x4, dtype=np.float64), -1, 0)
    return {
        "srr": _ratio(p, p + s),
        "ndr": _ratio(e, p + e),
        # 2 SRR NDR / (SRR + NDR), multiplied out so that it stays defined where it has a limit.
        "sds": _ratio(2 * p * e, p * p + 2 * p * e + e * s),
        "nscr": _ratio(e - s, p + e + s),
    }


def dynamics(base_hits_u: ArrayLike, policy_hits_u: ArrayLike, threshold: int = 1) -> Dynamics:
    """The 2x2 table of units from their hits in the two pools.

    Args:
        base_hits_u: how many of the base's samples hit each unit.
        policy_hits_u: the same for the policy, over the same units.
        threshold: hits from which a unit is in support.

    >>> from offleash.eval import dynamics
    >>> table = dynamics([9, 3, 0, 0, 5], [12, 0, 2, 0, 1])
    >>> table
    Dynamics(preserved=2, shrunk=1, expanded=1, out=1)
    >>> round(table.srr, 3), table.nscr
    (0.667, 0.0)
    """
    base, policy = check_hits(base_hits_u, policy_hits_u)
    check_threshold(threshold)
    return _table(base >= threshold, policy >= threshold)


def detection_limit(k: int, confidence: float = 0.95) -> float:
    """The largest probability that a miss in all k samples still allows: -ln(1 - confidence) / k (paper, App. C.4).

    Per unit, without correction for the number of units. Slightly above `detection_limit_exact`, so conservative.
    """
    _check_limit(k, confidence)
    return min(-math.log1p(-confidence) / k, 1.0)


def detection_limit_exact(k: int, confidence: float = 0.95, hits: int = 0) -> float:
    """The same bound exactly (Clopper-Pearson, one-sided), for a unit with `hits` hits in k samples.

    With support at hits >= r, a unit outside it may still have probability up to
    `detection_limit_exact(k, confidence, r - 1)`.
    """
    from scipy.special import betaincinv

    _check_limit(k, confidence)
    if not 0 <= hits <= k:
        raise ConfigError(f"hits must lie in 0..k={k}, got {hits}")
    if hits == k:
        return 1.0
    if hits == 0:
        return -math.expm1(math.log1p(-confidence) / k)
    return float(betaincinv(hits + 1, k - hits, confidence))


def dynamics_above(
    base_hits_u: ArrayLike, policy_hits_u: ArrayLike, n_base_u: ArrayLike, n_policy_u: ArrayLike, eps: float
) -> Dynamics:
    """The table under the paper's own definition: in support means an estimated rate hits/n > eps."""
    base, policy = check_hits(base_hits_u, policy_hits_u)
    (base, n_base), (policy, n_policy) = check_draws("base", base, n_base_u), check_draws("policy", policy, n_policy_u)
    if not 0 <= eps <= 1:
        raise ConfigError(f"eps must lie in [0, 1], got {eps}")
    # A product, not a quotient: 3/10 > 0.3 must not depend on how a division rounds.
    return _table(base > eps * n_base, policy > eps * n_policy)


def cells_of(in_base_u: ArrayLike, in_policy_u: ArrayLike) -> Floats:
    """[units, 4]: each unit as P, S, E, O, from whether it is in either support, or with what probability."""
    base, policy = np.asarray(in_base_u, dtype=np.float64), np.asarray(in_policy_u, dtype=np.float64)
    return np.stack([base * policy, base * (1 - policy), (1 - base) * policy, (1 - base) * (1 - policy)], axis=1)


def bootstrap_dynamics(
    cells_u4: ArrayLike,
    problem_u: ArrayLike | None = None,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> dict[str, Estimate]:
    """Intervals of the four counts and the four metrics, resampling problems with base and policy kept together.

    `cells_u4` is each unit's share in P, S, E and O (see `cells_of`): whole, or expected over subsets of its samples.
    `problem_u` is the problem each unit belongs to (default: each its own). The interval is about the population the
    problems were drawn from, counts scaled to this many problems, and includes the noise of the samples in a problem.
    Half a pseudo-problem of each kind keeps a count of zero from being called certain (see `stats.intervals`).
    """
    cells = np.asarray(cells_u4, dtype=np.float64).reshape(-1, 4)
    problems, index_u = np.unique(check_problems(problem_u, len(cells)), return_inverse=True)
    n, total_4 = len(problems), cells.sum(axis=0)
    if n == 0:
        return {name: Estimate(np.nan, np.nan, np.nan, 0) for name in CELLS + METRICS}
    rows_p4 = np.zeros((n, 4))
    np.add.at(rows_p4, index_u, cells)
    rows_r4, times_r = np.unique(rows_p4, axis=0, return_counts=True)
    pseudo_44 = np.eye(4) * total_4.sum() / n
    means_b4 = weighted_means(
        np.concatenate([rows_r4, pseudo_44]), np.concatenate([times_r, np.full(4, 0.5)]), resamples, rng
    )
    observed = dict(zip(CELLS, total_4, strict=True)) | metrics(total_4)
    resampled = dict(zip(CELLS, (means_b4 * n).T, strict=True)) | metrics(means_b4)
    return {name: interval(float(observed[name]), resampled[name], n, confidence) for name in CELLS + METRICS}


def expected_metrics(reached: float, lost: float, gained: float) -> dict[str, float]:
    """The four metrics of a sample that is expected to lose and gain so many units of those that the base reached.

    All are NaN if it reached none: ratios of the little that it is expected to gain say nothing.
    """
    if reached == 0:
        return dict.fromkeys(METRICS, math.nan)
    return {name: float(value) for name, value in metrics([reached - lost, lost, gained, 0.0]).items()}


def _ratio(numerator: ArrayLike, denominator: ArrayLike) -> Floats:
    numerator, denominator = np.broadcast_arrays(np.asarray(numerator, float), np.asarray(denominator, float))
    return np.divide(numerator, denominator, out=np.full(numerator.shape, np.nan), where=denominator != 0)


def _table(in_base_u: Flags, in_policy_u: Flags) -> Dynamics:
    return Dynamics(*cells_of(in_base_u, in_policy_u).sum(axis=0).astype(int).tolist())


def _check_limit(k: int, confidence: float) -> None:
    if k < 1:
        raise ConfigError(f"k must be at least 1, got {k}")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must lie strictly between 0 and 1, got {confidence}")
