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
from offleash.eval.stats.exact_support import check_probabilities, exact_dynamics
from offleash.eval.stats.intervals import Estimate, interval
from offleash.eval.stats.leash.tilt import factors, solve, tilt, weight_at

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
    policy_p = sums_by(policy[None], index_u)[0]
    log_weight = weight_at(base, index_u, float(policy_p.mean()))
    here = exact_dynamics(base, policy, eps)
    line = exact_dynamics(base, tilt(base, index_u, log_weight), eps).nscr if not np.isnan(log_weight) else np.nan
    spread_3b = resample(
        (base >= eps).astype(np.float64),
        (policy >= eps).astype(np.float64),
        policy_p,
        index_u,
        base_bu=lambda weight_bp: np.broadcast_to(base, (len(weight_bp), base.size)),
        reach=lambda tilted_bu: (tilted_bu >= eps).astype(np.float64),
        resamples=resamples,
        rng=rng,
    )
    return against(here.nscr, line, spread_3b, here.expanded, log_weight, policy_p.size, confidence)


def against(
    nscr: float, line: float, spread_3b: Floats, reached: float, log_weight: float, n: int, confidence: float
) -> AgainstLine:
    """From the values and what resampling made of them."""
    nscr_b, line_b, above_b = spread_3b
    return AgainstLine(
        interval(nscr, nscr_b, n, confidence),
        interval(line, line_b, n, confidence),
        interval(nscr - line, above_b, n, confidence),
        float(reached),
        log_weight,
    )


def resample(
    in_base_u: Floats,
    in_policy_u: Floats,
    policy_p: Floats,
    index_u: Ints,
    *,
    base_bu: Callable[[Floats], Floats],
    reach: Callable[[Floats], Floats],
    resamples: int,
    rng: np.random.Generator,
) -> Floats:
    """[3, resamples]: NSCR of the policy, of the line, and the difference.

    `base_bu` gives the base's probabilities for each row of weights over problems; `reach` how far a unit of some
    probability is in support.
    """
    if resamples < 1:
        raise ConfigError(f"resamples must be at least 1, got {resamples}")
    spread = np.empty((3, resamples))
    step = max(1, _BLOCK // max(index_u.size, 1))
    for start in range(0, resamples, step):
        weight_bp = rng.standard_exponential((min(step, resamples - start), policy_p.size))
        drawn_bu = base_bu(weight_bp * policy_p.size / weight_bp.sum(axis=1, keepdims=True))
        line_bu = reach(tilt_rows(drawn_bu, index_u, weight_bp, weight_bp @ policy_p / weight_bp.sum(axis=1)))
        weight_bu = weight_bp[:, index_u]
        pseudo_b4 = rng.standard_exponential((len(weight_bp), 4)) * (rng.random((len(weight_bp), 4)) < 0.5)
        policy_bu = np.broadcast_to(in_policy_u, line_bu.shape)
        policy_b, line_b = (
            _nscr(weight_bu, in_base_u, in_bu, pseudo_b4 @ net, pseudo_b4 @ union)
            for in_bu, net, union in zip((policy_bu, line_bu), _PSEUDO_NET, _PSEUDO_UNION, strict=True)
        )
        spread[:, start : start + step] = policy_b, line_b, policy_b - line_b
    return spread


def tilt_rows(base_bu: Floats, index_u: Ints, weight_bp: Floats, pass_at_1_b: Floats) -> Floats:
    """The reweighting of every row of probabilities at its pass@1; NaN where there is none."""
    base_bp = sums_by(base_bu, index_u)
    factor_bp = factors(base_bp, solve(base_bp, weight_bp, pass_at_1_b)[:, None])
    return base_bu * factor_bp[:, index_u]


def sums_by(rows_bu: Floats, index_u: Ints) -> Floats:
    """Of every row, the sum over each problem's units, at most 1: [rows, problems]."""
    order = np.argsort(index_u, kind="stable")
    starts = np.searchsorted(index_u[order], np.arange(int(index_u.max()) + 1))
    return np.minimum(np.add.reduceat(rows_bu[:, order], starts, axis=1), 1.0)


def _nscr(weight_bu: Floats, in_base_u: Floats, in_other_bu: Floats, net_b: Floats, union_b: Floats) -> Floats:
    net = np.einsum("bu,bu->b", weight_bu, in_other_bu - in_base_u) + net_b
    union = np.einsum("bu,bu->b", weight_bu, 1 - (1 - in_base_u) * (1 - in_other_bu)) + union_b
    return np.divide(net, union, out=np.full(net.shape, np.nan), where=union > 0)
