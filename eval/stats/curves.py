"""Two pass@k curves over the same problems: their difference, who leads at which k, and where the lead changes hands.

Intervals of the curves and of their difference resample problems (`stats.intervals`), one k at a time. Whether a lead
is more than noise is asked of all k at once. If both sides are the same model with the same budget, a problem's
difference is as likely to be positive as negative: flipping the signs of whole problems at random gives the
distribution of the largest studentised difference over all k, exactly and for any number of problems. With unequal
budgets it is approximate. A lead that stays below its quantile at every k is within noise. `bench/calibration.py` has
the coverage and how often a lead is claimed where there is none.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.intervals import Estimate, interval, weighted_means

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Side = Literal["base", "policy"]

_BLOCK = 4_000_000  # signs held in memory at once
_TIE = 1e-12  # far below what one sample of one problem can make
CORNERS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.float64)
CORNER_WEIGHT, DIFFERENCE_CORNER_WEIGHT = 0.25, 0.5
"""Pseudo-problems in each corner of (base, policy): for one side that is Jeffreys' prior. A difference rests on the few
problems that differ and needs more."""


class Crossing(NamedTuple):
    """At the budget k, which lies between two budgets compared, `leader` takes the lead."""

    k: float
    leader: Side


class Lead(NamedTuple):
    """A stretch of budgets at which one side is ahead."""

    leader: Side
    since: Estimate
    """The k at which it takes the lead; of the first stretch the smallest k compared, without an interval. The interval
    holds every k at which the lead could change hands, as far as the interval of the difference at each k tells; the
    upper end is inf where the new lead is never clear of 0."""
    beyond_noise: bool
    """At one of its budgets at least, all budgets being tested at once."""


class CurveComparison(NamedTuple):
    """Mean pass@k of base and policy, base minus policy, each one Estimate per k; and who leads, in order of k."""

    base: list[Estimate]
    policy: list[Estimate]
    difference: list[Estimate]
    leads: list[Lead]


def compare_curves(
    base_pk: ArrayLike,
    policy_pk: ArrayLike,
    ks: Sequence[int],
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> CurveComparison:
    """Both curves, base minus policy, and the leads: over the budgets that all problems of both sides reach."""
    base, policy = np.asarray(base_pk, dtype=np.float64), np.asarray(policy_pk, dtype=np.float64)
    if base.shape != policy.shape or base.ndim != 2 or base.shape[1] != len(ks):
        raise ConfigError(f"two [problems, {len(ks)}] arrays over the same problems are needed, got "
                          f"{base.shape} and {policy.shape}")  # fmt: skip
    n, width = base.shape

    def resampled(rows_pc: Floats, corners_4c: Floats, weight: float) -> Floats:
        return weighted_means(np.vstack([rows_pc, corners_4c]), np.r_[np.ones(n), [weight] * 4], resamples, rng)

    sides_bk = resampled(np.hstack([base, policy]), np.repeat(CORNERS, width, axis=1), CORNER_WEIGHT)
    lead_pk, lead_corners = base - policy, np.repeat(CORNERS @ [[1.0], [-1.0]], width, axis=1)
    lead_bk = resampled(lead_pk, lead_corners, DIFFERENCE_CORNER_WEIGHT)
    base_mean, policy_mean = _means(base), _means(policy)
    difference = _estimates(_lead(base_mean, policy_mean), lead_bk, n, confidence)
    clear_k = beyond_noise(lead_pk, rng=rng, confidence=confidence, resamples=resamples)
    return CurveComparison(
        base=_estimates(base_mean, sides_bk[:, :width], n, confidence),
        policy=_estimates(policy_mean, sides_bk[:, width:], n, confidence),
        difference=difference,
        leads=_leads(difference, clear_k, ks),
    )


def mean_interval(
    value_p: ArrayLike, *, rng: np.random.Generator, confidence: float = 0.95, resamples: int = 2000
) -> Estimate:
    """Of a mean over problems of values in [0, 1], as pass@1: the interval that `compare_curves` gives a side."""
    rows = np.asarray(value_p, dtype=np.float64)
    if not rows.size:
        return Estimate(np.nan, np.nan, np.nan, 0)
    shape = np.r_[np.ones(rows.size), [2 * CORNER_WEIGHT] * 2]
    means_b = weighted_means(np.r_[rows, 0.0, 1.0][:, None], shape, resamples, rng)[:, 0]
    return interval(float(rows.mean()), means_b, rows.size, confidence)


def crossings(base_k: ArrayLike, policy_k: ArrayLike, ks: Sequence[int]) -> list[Crossing]:
    """Every budget at which the lead changes hands, in either direction, interpolated linearly in ln k.

    `ks` ascends. Budgets that a curve does not reach (NaN) and ties are skipped: a tie alone changes no lead.
    """
    lead = _lead(np.asarray(base_k, dtype=np.float64), np.asarray(policy_k, dtype=np.float64))
    return [
        Crossing(_zero(ks[before], ks[after], lead[before], lead[after]), _leader(lead[after]))
        for before, after in _changes(lead)
    ]


def beyond_noise(
    difference_pk: ArrayLike, *, rng: np.random.Generator, confidence: float = 0.95, resamples: int = 2000
) -> Flags:
    """At which k the mean difference is larger than sign flips of problems explain, over all k at once: [k].

    If nothing differs, any k at all is named with a probability of at most 1 - `confidence`. False where a difference
    is undefined (NaN).
    """
    rows = np.asarray(difference_pk, dtype=np.float64)
    rows = np.where(np.isfinite(rows).all(axis=0), rows, 0.0)
    rows = rows[np.any(rows != 0, axis=1)]
    size_k = np.sqrt(np.sum(rows**2, axis=0))
    unit_pk = np.divide(rows, size_k, out=np.zeros(rows.shape), where=size_k > 0)
    largest_b = np.empty(resamples)
    step = max(1, _BLOCK // max(1, len(rows)))
    for start in range(0, resamples, step):
        signs_bp = rng.integers(0, 2, size=(min(step, resamples - start), len(rows)), dtype=np.int8) * 2.0 - 1.0
        largest_b[start : start + step] = np.abs(signs_bp @ unit_pk).max(axis=1, initial=0.0)
    # The observed signs are one more flip: the test is exact at any number of resamples.
    rank = int(np.ceil(confidence * (resamples + 1)))
    limit = np.sort(largest_b)[rank - 1] if rank <= resamples else np.inf
    return np.abs(unit_pk.sum(axis=0)) > limit * (1 + 1e-9)


def _lead(base_k: Floats, policy_k: Floats) -> Floats:
    """Base minus policy. Means of the same hits in another order differ in the last digits: those are ties."""
    lead = base_k - policy_k
    return np.where(np.abs(lead) < _TIE, 0.0, lead)


def _leads(difference: Sequence[Estimate], clear_k: Flags, ks: Sequence[int]) -> list[Lead]:
    lead = np.array([e.value for e in difference])
    decided = _decided(lead)
    if not decided.size:
        return []
    first = Estimate(float(ks[0]), np.nan, np.nan, difference[0].n)
    starts = [(first, int(decided[0]))]
    starts += [(_where(difference, ks, before, after), after) for before, after in _changes(lead)]
    ends = [*(start for _, start in starts[1:]), len(ks)]
    return [
        Lead(_leader(lead[start]), since, bool(clear_k[start:end].any()))
        for (since, start), end in zip(starts, ends, strict=True)
    ]


def _where(difference: Sequence[Estimate], ks: Sequence[int], before: int, after: int) -> Estimate:
    """The crossing between two budgets, and around it every k whose interval of the difference does not rule it out."""
    sign = np.sign(difference[after].value)
    value = _zero(ks[before], ks[after], difference[before].value, difference[after].value)
    # Towards the new leader: it is clear where the lower bound is above 0, the old one where the upper is below.
    bounds_k2 = np.sort([[sign * e.low, sign * e.high] for e in difference], axis=1)
    low, high = float(ks[0]), np.inf
    if (old := np.flatnonzero(bounds_k2[: before + 1, 1] < 0)).size:
        i = int(old[-1])
        low = _zero(ks[i], ks[i + 1], *bounds_k2[i : i + 2, 1])
    if (new := np.flatnonzero(bounds_k2[after:, 0] > 0)).size:
        i = after + int(new[0])
        high = _zero(ks[i - 1], ks[i], *bounds_k2[i - 1 : i + 1, 0])
    return Estimate(value, low, high, difference[after].n)


def _changes(lead_k: Floats) -> list[tuple[int, int]]:
    """Pairs of neighbouring budgets, ties and NaN skipped, between which the sign changes."""
    decided = _decided(lead_k)
    return [(int(i), int(j)) for i, j in pairwise(decided) if (lead_k[i] > 0) != (lead_k[j] > 0)]


def _decided(lead_k: Floats) -> NDArray[np.intp]:
    return np.flatnonzero(np.isfinite(lead_k) & (lead_k != 0))


def _leader(lead: float) -> Side:
    return "base" if lead > 0 else "policy"


def _zero(k: int, other: int, value: float, other_value: float) -> float:
    """Where the line through two points, in ln k, is 0."""
    share = value / (value - other_value)
    return float(np.exp(np.log(k) + share * np.log(other / k)))


def _means(rows_pk: Floats) -> Floats:
    return rows_pk.mean(axis=0) if len(rows_pk) else np.full(rows_pk.shape[1], np.nan)


def _estimates(value_k: Floats, resampled_bk: Floats, n: int, confidence: float) -> list[Estimate]:
    return [interval(float(value), resampled_bk[:, i], n, confidence) for i, value in enumerate(value_k)]
