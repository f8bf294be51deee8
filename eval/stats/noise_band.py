"""How many units an unchanged model would lose and gain: not the mean alone (`stats.predictive`) but a band.

A second sample of the base misses a unit of its support, or hits one outside it, with the beta-binomial probability of
`stats.predictive.fewer_again`. Taken as independent, the number of units lost is a sum of unequal coins (Poisson
binomial), whose distribution is the convolution of them all; the band is between two of its quantiles. Units of one
problem compete for its draws, which makes the true spread a little smaller: the band is, if anything, too wide.

Only for plans that draw a fixed n, and units that are all listed.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offleash.eval.stats.beta_binomial import fit_beta_binomial
from offleash.eval.stats.predictive import fewer_again

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NEGLIGIBLE = 1e-12  # of a coin, and of the tail of a distribution


class Band(NamedTuple):
    """Low and high quantile of a count."""

    low: float
    high: float


class NoiseBand(NamedTuple):
    """Of the units that only the first sample has in support, and of those that only the second has."""

    shrunk: Band
    expanded: Band


def noise_band(hits_u: Ints, n_u: Ints, again_u: Ints | int, threshold: int = 1, coverage: float = 0.95) -> NoiseBand:
    """Where the counts of a second sample of `again_u` draws are, with probability `coverage` at least.

    NaN where nothing can be told: at n = 1 a hit says nothing about how rates differ.
    """
    if not hits_u.size:
        return NoiseBand(Band(0.0, 0.0), Band(0.0, 0.0))
    if n_u.max() < 2:
        unknown = Band(float("nan"), float("nan"))
        return NoiseBand(unknown, unknown)
    out_u = fewer_again(fit_beta_binomial(hits_u, n_u), hits_u, n_u, again_u, threshold)
    held_u = hits_u >= threshold
    return NoiseBand(*(_band(sum_of_coins(coin_u), coverage) for coin_u in (out_u[held_u], 1 - out_u[~held_u])))


def sum_of_coins(chance_u: Floats) -> Floats:
    """Distribution of the number of heads of independent coins: P(0), P(1), ..."""
    pmf = np.ones(1)
    for chance in chance_u[chance_u > _NEGLIGIBLE].tolist():
        pmf = np.convolve(pmf, (1 - chance, chance))
        if pmf[-1] < _NEGLIGIBLE / len(chance_u):
            pmf = pmf[:-1]
    return pmf


def _band(pmf: Floats, coverage: float) -> Band:
    below = np.cumsum(pmf)
    low, high = np.searchsorted(below, ((1 - coverage) / 2, (1 + coverage) / 2))
    return Band(float(low), float(min(high, pmf.size - 1)))
