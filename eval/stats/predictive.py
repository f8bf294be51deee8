"""What a second, independent sample of the base would lose and gain: the noise that a comparison starts from.

The expectation is the base's alone. A Beta(a, b) of its units' rates is fitted to its hits (`stats.beta_binomial`); a
unit that was hit c times in n draws then has the posterior Beta(a + c, b + n - c), and k more draws of the same model
hit it fewer than r times with a beta-binomial probability. Summed over the units in the base's support that is the
expected number of Shrunk units; over the others, one minus it is the expected number of Expanded ones. Both are given
this base pool, because that is what the observed counts are compared with.

The policy's hits are not used: totals of both pools grow or fall with what training did to the policy, and an
expectation made of them is not what an unchanged model would show.

At n = 1 a hit says nothing about how rates differ between units, only about their mean: the expectation is then NaN.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.stats.beta_binomial import BetaBinomial, fit_beta_binomial

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Moves(NamedTuple):
    """Expected units that only the first sample has in support, and that only the second has."""

    shrunk: float
    expanded: float


def expected_moves(
    hits_u: Ints, n_u: Ints, again_u: ArrayLike, in_support_u: ArrayLike, threshold: int = 1, *, listed: bool = True
) -> Moves:
    """Of a second sample of `again_u` draws of each unit's problem.

    `in_support_u` is how far each unit is in the first sample's support: 0 or 1, or a fraction at k < n. `listed`: the
    units are all there are, hit or not; otherwise they are known from being hit, and the fit allows for the rest.
    """
    if not hits_u.size:
        return Moves(0.0, 0.0)
    if n_u.max() < 2 or not (listed or hits_u.any()):
        return Moves(float("nan"), float("nan"))
    fit = fit_beta_binomial(hits_u, n_u, truncated=not listed)
    again, in_support = np.broadcast_to(again_u, hits_u.shape), np.asarray(in_support_u, dtype=np.float64)
    out_u = fewer_again(fit, hits_u, n_u, again, threshold)
    shrunk = float(in_support @ out_u)
    if listed:
        return Moves(shrunk, float((1 - in_support) @ (1 - out_u)))
    # Of the units nobody saw: as many as the fit says were missed for each that was hit, each like one without a hit.
    hit = hits_u > 0
    missed_u = fit.miss(n_u[hit])
    unseen = fewer_again(fit, np.zeros(int(hit.sum()), np.int64), n_u[hit], again[hit], threshold)
    seen = float((1 - in_support[hit]) @ (1 - out_u[hit]))
    return Moves(shrunk, seen + float(missed_u / (1 - missed_u) @ (1 - unseen)))


def fewer_than_each(fit: BetaBinomial, hits_u: Ints, n_u: Ints, k: int, thresholds: Sequence[int]) -> Floats:
    """[thresholds, units]: `fewer_again` at several thresholds, in one pass over the number of hits."""
    from scipy.special import betaln, gammaln

    rows, index_u = np.unique(np.stack([hits_u, n_u]), axis=1, return_inverse=True)
    j = np.arange(min(max(thresholds), k + 1))
    ways_j = gammaln(k + 1) - gammaln(j + 1) - gammaln(k - j + 1)
    below = np.ones((len(thresholds), rows.shape[1]))
    for r, (hits, n) in enumerate(rows.T):
        a, b = fit.posterior(hits, n)
        total_j = np.cumsum(np.exp(ways_j + betaln(a + j, b + k - j) - betaln(a, b)))
        below[:, r] = [total_j[t - 1] if t <= len(total_j) else 1.0 for t in thresholds]
    return np.minimum(below, 1.0)[:, index_u.ravel()]


def fewer_again(fit: BetaBinomial, hits_u: ArrayLike, n_u: ArrayLike, k_u: ArrayLike, threshold: int = 1) -> Floats:
    """Probability that k further draws hit a unit fewer than `threshold` times, after `hits_u` hits in `n_u`."""
    from scipy.special import betaln, gammaln

    a, b = fit.posterior(hits_u, n_u)
    a, b, k = np.broadcast_arrays(a, b, np.asarray(k_u, dtype=np.float64))
    chance = np.zeros(a.shape)
    for j in range(threshold):
        rest = np.maximum(k - j, 0)
        ways = gammaln(k + 1) - gammaln(j + 1) - gammaln(rest + 1)
        chance += np.where(k >= j, np.exp(ways + betaln(a + j, b + rest) - betaln(a, b)), 0.0)
    return np.minimum(chance, 1.0)
