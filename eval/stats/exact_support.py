"""Support from exact probabilities: which units and problems lie above a floor, with no sampling noise.

Where every correct answer of a task can be enumerated, each unit has a known probability under base and policy. It is
in a model's support at the floor eps if that probability is eps or more (Def. 3.1 of arXiv 2507.14843); the table of P,
S, E, O and its metrics follow as in `stats.support`. A problem's probability, its pass@1, is the sum over its units.
What k draws would show is an expectation without sampling: a unit of probability p is hit with probability
1 - (1 - p)^k.

`entropy` is that of the distribution over correct answers given that the answer is correct, in nats, mean over the
problems that can be solved at all: wrong answers are not enumerated, so an entropy over all answers is not known here.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.counts import check_budgets, check_problems
from offleash.eval.stats.passk import powers_of_two
from offleash.eval.stats.support import Dynamics, cells_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EPSILONS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""The floors at which exact support is reported."""
_ROUNDING = 1e-4  # by which probabilities of a problem's answers may exceed 1: they are sums of float32 exponentials


class ExactSupport(NamedTuple):
    """A policy against its base on enumerated units. Problems are those that have units."""

    units: Mapping[float, Dynamics]
    """By floor."""
    problems: Mapping[float, Dynamics]
    pass_at_k: Mapping[int, float]
    """Of the policy; mean over problems of 1 - (1 - P)^k."""
    entropy: float
    """Of the policy, given that the answer is correct."""


def exact_support(
    base_u: ArrayLike,
    policy_u: ArrayLike,
    problem_u: ArrayLike,
    *,
    epsilons: Iterable[float] = EPSILONS,
    ks: Iterable[int] = tuple(powers_of_two(8192)),
) -> ExactSupport:
    """From the probabilities of the same units under base and policy, and the problem of each unit."""
    base, index_u = check_probabilities("base", base_u, problem_u)
    policy, _ = check_probabilities("policy", policy_u, problem_u)
    sides_p = sums(base, index_u), sums(policy, index_u)
    ks = list(ks)
    return ExactSupport(
        units={eps: exact_dynamics(base, policy, eps) for eps in epsilons},
        problems={eps: exact_dynamics(*sides_p, eps) for eps in epsilons},
        pass_at_k=dict(zip(ks, exact_pass_at_k(sides_p[1], ks).tolist(), strict=True)),
        entropy=conditional_entropy(policy, index_u),
    )


def exact_dynamics(base_u: ArrayLike, policy_u: ArrayLike, eps: float) -> Dynamics:
    """The 2x2 table of units (or of problems): in support is a probability of eps or more."""
    if not 0 < eps <= 1:
        raise ConfigError(f"eps must lie in (0, 1], got {eps}")
    base, policy = np.asarray(base_u, dtype=np.float64) >= eps, np.asarray(policy_u, dtype=np.float64) >= eps
    return Dynamics(*cells_of(base, policy).sum(axis=0).astype(int).tolist())


def hit_by(probability_u: ArrayLike, k: ArrayLike) -> Floats:
    """1 - (1 - p)^k: the chance that k draws hit a unit at least once, with all its digits where it is small."""
    with np.errstate(divide="ignore"):  # p = 1 is hit for sure
        return -np.expm1(np.asarray(k, dtype=np.float64) * np.log1p(-np.asarray(probability_u, dtype=np.float64)))


def exact_pass_at_k(probability_p: ArrayLike, ks: Iterable[int]) -> Floats:
    """Mean over problems of 1 - (1 - P)^k, at each k."""
    return hit_by(np.asarray(probability_p, dtype=np.float64), check_budgets(list(ks))[:, None]).mean(axis=1)


def conditional_entropy(probability_u: ArrayLike, problem_u: ArrayLike) -> float:
    """Of the answer given that it is correct, in nats; mean over problems with P > 0, NaN if there is none."""
    probability, index_u = check_probabilities("policy", probability_u, problem_u)
    total_p = sums(probability, index_u)
    there = probability > 0
    share = probability[there] / total_p[index_u[there]]
    entropy_p = np.bincount(index_u[there], -share * np.log(share), total_p.size)
    return float(entropy_p[total_p > 0].mean()) if np.any(total_p > 0) else float("nan")


def sums(probability_u: Floats, index_u: Ints) -> Floats:
    """The probability of each problem: the sum over its units, at most 1."""
    return np.minimum(np.bincount(index_u, probability_u), 1.0)


def check_probabilities(name: str, probability_u: ArrayLike, problem_u: ArrayLike) -> tuple[Floats, Ints]:
    """Probabilities of the units, and the index of each one's problem among the problems that have units."""
    probability = np.asarray(probability_u, dtype=np.float64)
    if probability.ndim != 1 or not probability.size:
        raise ConfigError(f"{name} probabilities must be a vector, one per unit; got shape {probability.shape}")
    _, index_u = np.unique(check_problems(problem_u, probability.size), return_inverse=True)
    wrong = ~(probability >= 0)  # NaN too
    if wrong.any():
        raise ConfigError(f"{name} probabilities must not be negative or NaN, got {probability[wrong][0]}")
    total = float(np.bincount(index_u, probability).max())
    if total > 1 + _ROUNDING:
        raise ConfigError(f"{name} probabilities of one problem's units must sum to at most 1, got {total}")
    return np.minimum(probability, 1.0), index_u
