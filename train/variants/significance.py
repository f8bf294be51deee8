"""Means and differences over a few seeds: Student's t test, paired or Welch's.

With few seeds the tests rely on roughly normal seed noise. A single value has a mean but no interval. Differences that
do not vary have no p-value (NaN), except that equal values have p = 1.

Welch 1947, "The generalization of Student's problem when several different population variances are involved".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offleash.eval.errors import ConfigError
from offleash.eval.stats.intervals import Estimate

CONFIDENCE = 0.95
ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of two means. `p` is two-sided, NaN if there is no test."""

    estimate: Estimate
    p: float
    method: str
    """`paired`, `welch`, or `none` if one side has a single value."""


def upper_tail(t: float, df: float) -> float:
    """P(T >= t) for Student's T with `df` degrees of freedom."""
    from scipy.special import stdtr

    return float(stdtr(df, -t))


def t_quantile(q: float, df: float) -> float:
    """The q-quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(df, q))


def mean_over_seeds(values: Sequence[float], within: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
    """The mean with its t interval, clipped to the metric's range `within`. Undefined values (NaN) are left out."""
    known = _known(values)
    if not len(known):
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(known.mean())
    if len(known) < 2:
        return Estimate(mean, math.nan, math.nan, 1)
    half = t_quantile((1 + CONFIDENCE) / 2, len(known) - 1) * float(known.std(ddof=1)) / math.sqrt(len(known))
    return Estimate(mean, max(mean - half, within[0]), min(mean + half, within[1]), len(known))


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Mean of ours - theirs, seed by seed."""
    if len(ours) != len(theirs):
        raise ConfigError(f"a paired test needs equally many values, got {len(ours)} and {len(theirs)}")
    gaps = _known([a - b for a, b in zip(ours, theirs, strict=True)])
    if len(gaps) < 2:
        return _untested(float(gaps.mean()) if len(gaps) else math.nan, len(gaps))
    error = float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
    return _tested(float(gaps.mean()), error, len(gaps) - 1, len(gaps), "paired")


def welch(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Mean of ours - mean of theirs, for different seeds; n is the smaller count."""
    a, b = _known(ours), _known(theirs)
    n = min(len(a), len(b))
    value = float(a.mean() - b.mean()) if n else math.nan
    if n < 2:
        return _untested(value, n)
    var_a, var_b = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    total = var_a + var_b
    df = total**2 / (var_a**2 / (len(a) - 1) + var_b**2 / (len(b) - 1)) if total else float(len(a) + len(b) - 2)
    return _tested(value, math.sqrt(total), df, n, "welch")


def _tested(value: float, error: float, df: float, n: int, method: str) -> Difference:
    if error <= 1e-12 * max(1.0, abs(value)):  # equal but for rounding: rates of a few problems often are
        return Difference(Estimate(value, value, value, n), 1.0 if value == 0 else math.nan, method)
    half = t_quantile((1 + CONFIDENCE) / 2, df) * error
    return Difference(Estimate(value, value - half, value + half, n), 2 * upper_tail(abs(value / error), df), method)


def _untested(value: float, n: int) -> Difference:
    return Difference(Estimate(value, math.nan, math.nan, n), math.nan, "none")


def _known(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]
