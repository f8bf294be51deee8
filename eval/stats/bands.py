"""What a second, independent sample of the base would show: the noise that a comparison starts from.

The expectation is the base's alone. How rates differ between its units is fitted to its hits, by a mixture of Betas
(`beta_binomial.Rates`): under one component a unit that was hit c times in n draws has the posterior Beta(a + c,
b + n - c), and k more draws of the same model hit it fewer than r times with a beta-binomial probability. Summed over
the units in the base's support that is the expected number of Shrunk units; over the others, one minus it is the
expected number of Expanded ones. Both are given this base pool, because that is what the observed counts are compared
with. Where units are known only from being hit, one Beta is fitted, which tells how many more there are.

The band around it is that of second samples drawn from the same mixture, fitted again to problems weighted at random
(the Bayesian bootstrap), so that what the fit does not know widens the band. Units of one problem compete for its
samples and are drawn independently all the same. How often a band holds: `bench/calibration.py --table bands`.

The policy's hits are not used: totals of both pools grow or fall with what training did to the policy, and an
expectation made of them is not what an unchanged model would show. So a run has one band for all its steps.

At n = 1 a hit says nothing about how rates differ between units, only about their mean: all is NaN then.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.stats.beta_binomial import BetaBinomial, Rates, fewer_hits, fit_beta_binomial
from offleash.eval.stats.counts import check_counts, check_draws, check_problems, check_threshold
from offleash.eval.stats.intervals import Estimate, interval
from offleash.eval.stats.support import METRICS, expected_metrics, metrics

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BANDED = ("shrunk", "expanded", *METRICS)
_FITS, _SAMPLES = 100, 20
"""Fits to weighted problems, and second samples from each."""
_ROUNDS = 300


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


def noise_bands(
    base_hits_u: ArrayLike,
    n_base_u: ArrayLike,
    n_again_u: ArrayLike,
    threshold: int = 1,
    *,
    problem_u: ArrayLike | None = None,
    confidence: float = 0.95,
) -> dict[str, Estimate]:
    """What a second sample of the base would lose and gain, and its SRR, NDR, SDS and NSCR: by the names in `BANDED`.

    Args:
        base_hits_u: how many of the base's samples hit each unit; the units are all there are, hit or not.
        n_base_u: the base's samples of each unit's problem, or one number for all.
        n_again_u: the same for the second sample: as many as the policy has.
        threshold: hits from which a unit is in support.
        problem_u: the problem each unit belongs to (default: each its own).
        confidence: the chance that a number of the second sample lies in its band.

    `value` is that of the expected counts. All is NaN where a pool of one sample a problem tells nothing. Equal counts
    give equal bands: the seed is fixed.

    >>> from offleash.eval.stats.bands import noise_bands
    >>> lost = noise_bands([1, 1, 2, 0, 30, 22], 64, 64)["shrunk"]
    >>> round(lost.value), lost.low, lost.high
    (1, 0.0, 3.0)
    """
    check_threshold(threshold)
    hits, n = check_draws("base", np.asarray(base_hits_u), n_base_u)
    again = np.broadcast_to(check_counts("n_again", n_again_u), hits.shape)
    problem = check_problems(problem_u, hits.size)
    if not hits.size or n.max() < 2:
        return dict.fromkeys(BANDED, Estimate(np.nan, np.nan, np.nan, hits.size))
    rng = np.random.default_rng(0)
    rates, share_bg = _fits(hits, n, problem, rng)
    out_bu = rates.fewer_again(again, threshold, share_bg)
    in_base = hits >= threshold
    held = float(in_base.sum())
    moved = [[(rng.random(c.shape) < c).sum(axis=1) for c in (out_bu[:, in_base], 1 - out_bu[:, ~in_base])]
             for _ in range(_SAMPLES)]  # fmt: skip
    lost_b, gained_b = np.concatenate(moved, axis=1).astype(np.float64)
    expected = expected_moves(hits, n, again, in_base, threshold)
    value = {"shrunk": expected.shrunk, "expanded": expected.expanded}
    value |= expected_metrics(held, *expected)
    table_b4 = np.stack([held - lost_b, lost_b, gained_b, np.zeros_like(lost_b)], axis=-1)
    shown = {"shrunk": lost_b, "expanded": gained_b} | metrics(table_b4)
    return {name: interval(value[name], shown[name], hits.size, confidence) for name in BANDED}


def pass_at_1_band(
    correct_p: ArrayLike, n_base_p: ArrayLike, n_again_p: ArrayLike, *, confidence: float = 0.95
) -> Estimate:
    """The same for pass@1; `value` is the base's own. Given the rates, its mean over problems is taken as normal."""
    correct, n = check_draws("base", np.asarray(correct_p), n_base_p)
    again = np.broadcast_to(check_counts("n_again", n_again_p), correct.shape)
    if not correct.size or n.max() < 2:
        return Estimate(np.nan, np.nan, np.nan, correct.size)
    rng = np.random.default_rng(0)
    rates, share_bg = _fits(correct, n, np.arange(correct.size), rng)
    mean_bp, variance_bp = rates.moments_again(again, share_bg)
    spread_b = np.sqrt(variance_bp.sum(axis=1)) / correct.size
    pass_sb = np.clip(rng.normal(mean_bp.mean(axis=1), spread_b, (_SAMPLES, _FITS)), 0.0, 1.0)
    return interval(float((correct / n).mean()), pass_sb.ravel(), correct.size, confidence)


def _fits(hits_u: Ints, n_u: Ints, problem_u: NDArray, rng: np.random.Generator) -> tuple[Rates, Floats]:
    """The fit to all units, and the shares of those to weighted problems."""
    problems, index_u = np.unique(problem_u, return_inverse=True)
    rates = Rates.fitted(hits_u, n_u)
    return rates, rates.refitted(rng.standard_gamma(1.0, (_FITS, problems.size))[:, index_u], _ROUNDS)
