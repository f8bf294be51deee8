"""What a second, independent sample of the base would lose and gain: the noise that a comparison starts from.

The expectation is the base's alone. How rates differ between its units is fitted to its hits, by a mixture of Betas
(`stats.leash.rates`): under one component a unit that was hit c times in n draws has the posterior Beta(a + c,
b + n - c), and k more draws of the same model hit it fewer than r times with a beta-binomial probability. Summed over
the units in the base's support that is the expected number of Shrunk units; over the others, one minus it is the
expected number of Expanded ones. Both are given this base pool, because that is what the observed counts are compared
with. Where units are known only from being hit, one Beta is fitted (`stats.beta_binomial`), which tells how many more
there are. `stats.bands` has the spread around the expectation.

The policy's hits are not used: totals of both pools grow or fall with what training did to the policy, and an
expectation made of them is not what an unchanged model would show.

At n = 1 a hit says nothing about how rates differ between units, only about their mean: the expectation is then NaN.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.stats.beta_binomial import BetaBinomial, fewer_hits, fit_beta_binomial
from offleash.eval.stats.leash.rates import Rates

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
    again, in_support = np.broadcast_to(again_u, hits_u.shape), np.asarray(in_support_u, dtype=np.float64)
    if listed:
        out_u = Rates.fitted(hits_u, n_u).fewer_again(again, threshold)
        return Moves(float(in_support @ out_u), float((1 - in_support) @ (1 - out_u)))
    fit = fit_beta_binomial(hits_u, n_u, truncated=True)
    out_u = fewer_again(fit, hits_u, n_u, again, threshold)
    # Of the units nobody saw: as many as the fit says were missed for each that was hit, each like one without a hit.
    hit = hits_u > 0
    missed_u = fit.miss(n_u[hit])
    unseen = fewer_again(fit, np.zeros(int(hit.sum()), np.int64), n_u[hit], again[hit], threshold)
    seen = float((1 - in_support[hit]) @ (1 - out_u[hit]))
    return Moves(float(in_support @ out_u), seen + float(missed_u / (1 - missed_u) @ (1 - unseen)))


def fewer_again(fit: BetaBinomial, hits_u: ArrayLike, n_u: ArrayLike, k_u: ArrayLike, threshold: int = 1) -> Floats:
    """Probability that k further draws hit a unit fewer than `threshold` times, after `hits_u` hits in `n_u`."""
    return fewer_hits(*fit.posterior(hits_u, n_u), k_u, threshold)
