"""A policy's NSCR beside that of the leash line at equal pass@1, with the error of each and of their difference.

Problems are resampled with base, policy and line kept together: each resample has Dirichlet weights over problems, the
policy's pass@1 under these weights, and the line at that pass@1. In every other resample a pseudo-unit of each kind
(gained or lost, by one side and not by the other) keeps a difference of zero from being called certain.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.exact_support import check_probabilities, exact_dynamics, sums
from offleash.eval.stats.intervals import Estimate, interval
from offleash.eval.stats.leash.tilt import beta_of, factors, solve, tilt, weight_at

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BLOCK = 2_000_000  # numbers held in memory at once
_PSEUDO_NET = np.array([[1, 0, -1, 0], [0, 1, 0, -1]])
_PSEUDO_UNION = np.array([[1, 0, 1, 1], [0, 1, 1, 1]])
"""What a pseudo-unit adds to policy and line: gained by the policy alone or the line alone, lost by one alone."""


class AgainstLine(NamedTuple):
    """NSCR of the policy, of the line at its pass@1, and by how much the policy is above. NaN where no line exists."""

    nscr: Estimate
    line: Estimate
    above: Estimate
    reached: float
    """Units that the policy has in support and the base has not. If there is one, the base's support is not complete;
    where it is complete no policy can gain a unit."""
    log_weight: float
    """ln w = 1/beta of the line."""

    @property
    def beta(self) -> float:
        return beta_of(self.log_weight)


def exact_against_line(
    base_u: ArrayLike,
    policy_u: ArrayLike,
    problem_u: ArrayLike,
    eps: float,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 1000,
) -> AgainstLine:
    """At the floor eps, from exact probabilities; the intervals are about problems like these."""
    base, index_u = check_probabilities("base", base_u, problem_u)
    policy, _ = check_probabilities("policy", policy_u, problem_u)
    base_p, policy_p = sums(base, index_u), sums(policy, index_u)
    log_weight = weight_at(base, index_u, float(policy_p.mean()))
    here = exact_dynamics(base, policy, eps)
    line = exact_dynamics(base, tilt(base, index_u, log_weight), eps).nscr if not np.isnan(log_weight) else np.nan

    def above(probability: Floats) -> Floats:
        return (probability >= eps).astype(np.float64)

    def line_of(weighted: Weighted) -> tuple[Floats, Floats]:
        base_bp = np.broadcast_to(base_p, weighted.weight_bp.shape)
        log_weight_b = solve(base_bp, weighted.weight_bp, weighted.pass_at_1_b)
        in_line_bu = above(base * factors(base_bp, log_weight_b[:, None])[:, index_u])
        in_line_bu[np.isnan(log_weight_b)] = np.nan
        return in_line_bu, in_line_bu

    spread = resample(above(base), above(policy), policy_p, index_u, line=line_of, resamples=resamples, rng=rng)
    return against(here.nscr, line, spread, here.expanded, log_weight, policy_p.size, confidence)


class Weighted(NamedTuple):
    """Weights of the problems, one resample a row, and the policy's pass@1 under them."""

    weight_bp: Floats
    pass_at_1_b: Floats


class Spread(NamedTuple):
    """NSCR over resamples; `most_b` is the largest that the line may have."""

    policy_b: Floats
    line_b: Floats
    most_b: Floats


def resample(
    in_base_u: Floats,
    in_policy_u: Floats,
    policy_p: Floats,
    index_u: Ints,
    *,
    line: Callable[[Weighted], tuple[Floats, Floats]],
    resamples: int,
    rng: np.random.Generator,
) -> Spread:
    """`line` gives how far each unit is in the line's support, [rows, units], and how far it is at most."""
    if resamples < 1:
        raise ConfigError(f"resamples must be at least 1, got {resamples}")
    found = []
    step = max(1, _BLOCK // max(index_u.size, 1))
    for start in range(0, resamples, step):
        weight_bp = rng.standard_exponential((min(step, resamples - start), policy_p.size))
        weight_bp *= policy_p.size / weight_bp.sum(axis=1, keepdims=True)
        line_bu, most_bu = line(Weighted(weight_bp, weight_bp @ policy_p / policy_p.size))
        policy_bu, weight_bu = np.broadcast_to(in_policy_u, line_bu.shape), weight_bp[:, index_u]
        pseudo_b4 = rng.standard_exponential((len(weight_bp), 4)) * (rng.random((len(weight_bp), 4)) < 0.5)
        found.append(
            [
                _nscr(weight_bu, in_base_u, in_bu, pseudo_b4 @ _PSEUDO_NET[side], pseudo_b4 @ _PSEUDO_UNION[side])
                for side, in_bu in ((0, policy_bu), (1, line_bu), (1, most_bu))
            ]
        )
    return Spread(*np.concatenate(found, axis=1))


def against(
    nscr: float, line: float, spread: Spread, reached: float, log_weight: float, n: int, confidence: float
) -> AgainstLine:
    """From the values and what resampling made of them."""

    def between(value: float, low_b: Floats, high_b: Floats) -> Estimate:
        return Estimate(
            value, interval(value, low_b, n, confidence).low, interval(value, high_b, n, confidence).high, n
        )

    policy_b, line_b, most_b = spread
    return AgainstLine(
        between(nscr, policy_b, policy_b),
        between(line, line_b, most_b),
        between(nscr - line, policy_b - most_b, policy_b - line_b),
        float(reached),
        log_weight,
    )


def _nscr(weight_bu: Floats, in_base_u: Floats, in_other_bu: Floats, net_b: Floats, union_b: Floats) -> Floats:
    net = np.einsum("bu,bu->b", weight_bu, in_other_bu - in_base_u) + net_b
    union = np.einsum("bu,bu->b", weight_bu, 1 - (1 - in_base_u) * (1 - in_other_bu)) + union_b
    return np.divide(net, union, out=np.full(net.shape, np.nan), where=union > 0)
