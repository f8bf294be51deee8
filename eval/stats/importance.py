"""Units' probabilities under base and policy from the draws of both, weighted by their log-probabilities.

A completion that was drawn is known with its probability under either model (teacher forcing), so a base draw also says
how likely the policy makes it. Of n_b draws from the base q and n_p from the policy p, the balance heuristic (Veach and
Guibas 1995) estimates the policy's probability of a unit by

    sum over the draws x in the unit of p(x) / (n_b q(x) + n_p p(x)),

and the base's with q(x) above the line. Both are unbiased, no weight exceeds 1/n_p (1/n_b), and a unit that the policy
never hit but the base did gets the small probability it has instead of zero. Pure importance sampling, whose weights
p/q are unbounded, is not offered.

It fails where the two models hardly overlap, as with long completions: then a few draws carry the sum. The variance of
ln p(x)/q(x) over the base's draws of a problem tells; from `LARGEST_VARIANCE` on the numbers are withheld. The
log-probabilities must be those of the distribution that was sampled, temperature and truncation included.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LARGEST_VARIANCE = 4.0
"""Of the log-ratio; from here on a handful of draws decides."""


class Draws(NamedTuple):
    """Correct completions, one entry each (or one per distinct completion, with how often each model drew it)."""

    unit_x: Ints
    problem_x: Ints
    from_base_x: Ints
    from_policy_x: Ints
    base_logprob_x: Floats
    policy_logprob_x: Floats


class MixtureRates(NamedTuple):
    """Probabilities of units, and how far they can be trusted."""

    base_u: Floats
    policy_u: Floats
    effective_samples: float
    """Of the policy's estimates: (sum of weights)^2 / sum of squares over a problem's draws, mean over problems."""
    log_ratio_variance: float
    """Of ln p/q within a problem's base draws, pooled; NaN where no problem has two of them."""

    @property
    def withheld(self) -> bool:
        """Whether the two models are too far apart, or nothing says that they are not."""
        return not self.log_ratio_variance < LARGEST_VARIANCE


def mixture_rates(draws: Draws, units: int, n_base_p: ArrayLike, n_policy_p: ArrayLike) -> MixtureRates:
    """Estimate the probability of each of `units` units from the correct draws; `n_..._p` counts all draws.

    A log-probability of -inf is that of a completion which the side's truncation rules out.
    """
    unit, problem, from_base, from_policy, base, policy = draws
    n_base, n_policy = (np.asarray(n, dtype=np.float64) for n in (n_base_p, n_policy_p))
    times = (from_base + from_policy).astype(np.float64)
    if np.any(np.isnan(base)) or np.any(np.isnan(policy)) or np.any((base > 1e-6) | (policy > 1e-6)):
        raise ConfigError("every draw needs its log-probability under base and policy, at most 0")
    if np.any(n_base < 1) or np.any(n_policy < 1):
        raise ConfigError("every problem needs draws of both models: the weights of one alone are unbounded")
    if np.any(np.bincount(problem, from_base, n_base.size) > n_base) or np.any(
        np.bincount(problem, from_policy, n_policy.size) > n_policy
    ):
        raise ConfigError("a problem has more correct draws than draws")
    if np.any(np.isneginf(base) & (from_base > 0)) or np.any(np.isneginf(policy) & (from_policy > 0)):
        raise ConfigError("a completion was drawn that has probability 0 under the model that drew it: the scores are "
                          "not those of the distribution that was sampled")  # fmt: skip
    with np.errstate(divide="ignore"):
        mixed = np.logaddexp(np.log(n_base)[problem] + base, np.log(n_policy)[problem] + policy)
    base_weight, policy_weight = np.exp(base - mixed), np.exp(policy - mixed)
    base_u, policy_u = (np.bincount(unit, times * weight, units) for weight in (base_weight, policy_weight))
    return MixtureRates(
        base_u.astype(np.float64),
        policy_u.astype(np.float64),
        _effective(problem, times, policy_weight),
        _variance(problem, from_base.astype(np.float64), np.maximum(policy, -700) - np.maximum(base, -700)),
    )


def _effective(problem_x: Ints, times_x: Floats, weight_x: Floats) -> float:
    total, squares = (np.bincount(problem_x, times_x * weight_x**power) for power in (1, 2))
    seen = squares > 0
    return float(np.mean(total[seen] ** 2 / squares[seen])) if seen.any() else float("nan")


def _variance(problem_x: Ints, times_x: Floats, value_x: Floats) -> float:
    count, total = (np.bincount(problem_x, column) for column in (times_x, times_x * value_x))
    mean = np.divide(total, count, out=np.zeros(len(total)), where=count > 0)
    free = float(np.maximum(count - 1, 0).sum())
    return float(times_x @ (value_x - mean[problem_x]) ** 2) / free if free else float("nan")
