"""Intervals that hold for other training seeds and other problems: noise of seeds and of problems added up.

A number theta is the mean over seeds of a statistic on all problems. Its error has two parts:

- seeds: the variance of the statistic over seeds, divided by their number;
- problems: the delete-a-group jackknife of the mean over seeds, (G - 1)/G times the sum of squared deviations of the
  values without one of G groups of problems. It needs no formula for the statistic (a ratio, its distance to the leash
  line). Base and policy samples of different problems are independent, so for sampled outcomes their noise is in it.

What seeds and problems do together (a seed that is lucky on one problem) is in both parts, so the sum is a little too
large: the interval errs on the wide side. Student's t, with Satterthwaite's degrees of freedom of the sum.

Quenouille 1956; Cameron, Gelbach, Miller 2011, "Robust inference with multiway clustering"; Satterthwaite 1946.
"""

import math

import numpy as np
from numpy.typing import NDArray

from offleash.eval.stats.intervals import Estimate
from offleash.train.variants.significance import CONFIDENCE, t_quantile

Floats = NDArray[np.float64]


def two_way(values_gs: Floats, confidence: float = CONFIDENCE) -> Estimate:
    """From a statistic of each seed on all problems (row 0) and without each group of problems (the other rows).

    n is the number of seeds. With one seed there is no interval. NaN anywhere makes the interval unknown: a statistic
    that is undefined for some seed has no mean.
    """
    full_s, mean_g = values_gs[0], values_gs[1:].mean(axis=1)
    seeds, groups, value = full_s.size, mean_g.size, float(full_s.mean())
    if seeds < 2 or groups < 2 or np.isnan(values_gs).any():
        return Estimate(value, math.nan, math.nan, seeds)
    of_seeds = float(full_s.var(ddof=1)) / seeds
    of_problems = (groups - 1) / groups * float(((mean_g - mean_g.mean()) ** 2).sum())
    total = of_seeds + of_problems
    if total <= 1e-24:  # equal but for rounding
        return Estimate(value, value, value, seeds)
    df = total**2 / (of_seeds**2 / (seeds - 1) + of_problems**2 / (groups - 1))
    half = t_quantile((1 + confidence) / 2, df) * math.sqrt(total)
    return Estimate(value, value - half, value + half, seeds)
