"""The posterior view: how sure the hits make us that a unit's probability is above the floor.

Counting hits >= 1 calls a unit with one hit in 8192 as supported as one with a thousand. Here each unit's probability
has a Beta(hits + 1/2, misses + 1/2) posterior (Jeffreys) under each model, the two models independently; the definition
of support at a floor eps (arXiv 2507.14843v4, Def. 3.1) then holds with a probability rather than by decree. Counts of
Preserved, Shrunk, Expanded and Out become sums of independent yes-or-no's, whose distribution is exact (a convolution).
Units are taken one by one: that several answers of a problem share its samples is ignored, which is harmless while each
is rare. Reviewers of the paper asked for both: the sensitivity to eps, and uncertainty.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.intervals import Estimate, interval
from offleash.eval.stats.support import CELLS, METRICS, metrics

Floats = NDArray[np.float64]


def probability_above(hits_u: ArrayLike, n_u: ArrayLike, eps: float, prior: float = 0.5) -> Floats:
    """P(rate > eps | hits in n draws) of each unit, with a Beta(prior, prior) prior; Jeffreys by default."""
    hits, n = np.broadcast_arrays(np.asarray(hits_u, dtype=np.float64), np.asarray(n_u, dtype=np.float64))
    if np.any(hits < 0) or np.any(hits > n):
        raise ConfigError("a unit's hits must lie between 0 and its draws")
    if not 0 <= eps < 1:
        raise ConfigError(f"eps must lie in [0, 1), got {eps}")
    from scipy.special import betainc

    # The upper tail directly: 1 - cdf would round a small one to nothing.
    return betainc(n - hits + prior, hits + prior, 1 - eps)


def posterior_dynamics(
    base_hits_u: ArrayLike,
    policy_hits_u: ArrayLike,
    n_base_u: ArrayLike,
    n_policy_u: ArrayLike,
    eps: float,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    draws: int = 2000,
) -> dict[str, Estimate]:
    """Expected P, S, E, O at the floor `eps` with exact credible intervals, and the four metrics with sampled ones.

    A metric's value is that of the expected counts. These intervals are about these units under these two models; how
    other problems would have come out is the business of `offleash.eval.stats.support.bootstrap_dynamics`.
    """
    base_u = probability_above(base_hits_u, n_base_u, eps)
    policy_u = probability_above(policy_hits_u, n_policy_u, eps)
    if base_u.shape != policy_u.shape or base_u.ndim != 1:
        raise ConfigError(f"hits must be two vectors over the same units, got {base_u.shape} and {policy_u.shape}")
    cells_u4 = np.stack(
        [base_u * policy_u, base_u * (1 - policy_u), (1 - base_u) * policy_u, (1 - base_u) * (1 - policy_u)], axis=1
    )
    n = len(cells_u4)
    expected_4 = cells_u4.sum(axis=0)
    counts = {name: _count(cells_u4[:, i], confidence) for i, name in enumerate(CELLS)}
    values = metrics(expected_4)
    draws_by_name = metrics(_sampled_counts(cells_u4, draws, rng))
    return counts | {name: interval(float(values[name]), draws_by_name[name], n, confidence) for name in METRICS}


def posterior_sensitivity(
    base_hits_u: ArrayLike,
    policy_hits_u: ArrayLike,
    n_base_u: ArrayLike,
    n_policy_u: ArrayLike,
    eps_k: Sequence[float],
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    draws: int = 2000,
) -> list[dict[str, Estimate]]:
    """`posterior_dynamics` at each floor of `eps_k`."""
    return [
        posterior_dynamics(
            base_hits_u, policy_hits_u, n_base_u, n_policy_u, eps, rng=rng, confidence=confidence, draws=draws
        )
        for eps in eps_k
    ]


def _count(chance_u: Floats, confidence: float) -> Estimate:
    """A sum of independent yes-or-no's: its mean, and the quantiles of its exact distribution."""
    pmf = np.ones(1)
    for chance in chance_u[chance_u > 0]:
        pmf = np.convolve(pmf, [1 - chance, chance])
    cdf = np.cumsum(pmf)
    tail = (1 - confidence) / 2
    low, high = np.searchsorted(cdf, [tail, 1 - tail])
    mean = float(chance_u.sum())
    return Estimate(mean, min(float(low), mean), max(float(min(high, pmf.size - 1)), mean), chance_u.size)


def _sampled_counts(cells_u4: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """[draws, 4]: tables drawn from the posterior. Units with the same chances are drawn together, as a multinomial."""
    kinds_r4, times_r = np.unique(cells_u4.round(12), axis=0, return_counts=True)
    tables_b4 = np.zeros((draws, 4))
    for chances, times in zip(kinds_r4, times_r, strict=True):
        tables_b4 += rng.multinomial(times, chances / chances.sum(), size=draws)
    return tables_b4
