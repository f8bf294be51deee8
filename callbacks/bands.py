"""The bands around the numbers of a step: what a second sample of the base would show, and 95 % intervals.

They are scalars like the others, by the tags of `callbacks.tags`, so that every tracker has them; `callbacks.charts`
draws them in TensorBoard.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from offleash.callbacks import tags
from offleash.callbacks.tags import Band, Bands, Bounds
from offleash.eval.pool.counts import Hits
from offleash.eval.stats.bands import noise_bands, pass_at_1_band
from offleash.eval.stats.curves import mean_interval
from offleash.eval.stats.intervals import Estimate
from offleash.eval.stats.support import METRICS, STABLE_HITS, bootstrap_dynamics, cells_of

_RESAMPLES = 1000


def noise_metrics(base: Hits, again_p: ArrayLike, highest: int | None = None) -> dict[str, float]:
    """Of a second sample with `again_p` draws of each problem.

    `highest`: the hits at which the plan stops a problem, beyond which nothing is known; None for a fixed plan. What a
    second sample under such a plan shows as pass@1 is not known either.
    """
    again = np.broadcast_to(again_p, base.n_p.shape)
    of = base.unit_problem
    sides = (
        (tags.UNIT_NOISE, base.unit_hits, base.n_p[of], again[of], of),
        (tags.PROBLEM_NOISE, base.correct_p, base.n_p, again, np.arange(len(base.n_p))),
    )
    found: dict[str, float] = {}
    for level, hits, n, draws, problem in sides:
        found |= _level(level, noise_bands(hits, n, draws, problem_u=problem))
        at_five = dict.fromkeys(METRICS, _UNKNOWN)
        if highest is None or highest >= STABLE_HITS:
            at_five = noise_bands(hits, n, draws, STABLE_HITS, problem_u=problem)
        found |= _level(level, {f"{name}_hits{STABLE_HITS}": at_five[name] for name in METRICS})
    band = pass_at_1_band(base.correct_p, base.n_p, again) if highest is None else _UNKNOWN
    return found | _ends(tags.PASS_AT_1_NOISE, band)


def interval_metrics(base: Hits, policy: Hits) -> dict[str, float]:
    """Of a policy with a fixed number of samples, problems being drawn again."""
    rng = np.random.default_rng(0)
    cells_u4 = cells_of(base.unit_hits > 0, policy.unit_hits > 0)
    found = bootstrap_dynamics(cells_u4, base.unit_problem, rng=rng, resamples=_RESAMPLES)
    found["pass_at_1"] = mean_interval(policy.correct_p / policy.n_p, rng=rng, resamples=_RESAMPLES)
    return _level(tags.INTERVAL, {name: found[name] for name in tags.INTERVAL._fields})


_UNKNOWN = Estimate(math.nan, math.nan, math.nan, 0)


def _level(bounds: Bands | tags.Intervals, found: dict[str, Estimate]) -> dict[str, float]:
    return {tag: end for name, band in found.items() for tag, end in _ends(getattr(bounds, name), band).items()}


def _ends(bounds: Band | Bounds, band: Estimate) -> dict[str, float]:
    ends = {bounds.low.tag: band.low, bounds.high.tag: band.high}
    return {**ends, bounds.expected.tag: band.value} if isinstance(bounds, Band) else ends
