"""Noise bands: between which values the numbers of a second, independent sample of the base would lie.

`stats.predictive` has the expectation; this has the distribution around it, by the same model. Each unit has its own
probability to be in the second sample's support, so the units lost, and the units gained, are sums of unequal coin
flips (Poisson-binomial), which is computed exactly. SRR, NDR, SDS and NSCR are functions of these two counts. pass@k
needs the hits themselves: they are drawn.

Units are taken to be independent. Those of one problem compete for its samples, which makes the true spread a little
narrower: the bands are conservative. The base's pool is all they are made of, so a run has one band, at every step.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.beta_binomial import fit_beta_binomial
from offleash.eval.stats.counts import check_draws, check_threshold
from offleash.eval.stats.intervals import Estimate, interval
from offleash.eval.stats.passk import pass_at_k
from offleash.eval.stats.predictive import fewer_again
from offleash.eval.stats.support import METRICS, metrics

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BANDED = ("shrunk", "expanded", *METRICS)
_NEGLIGIBLE = 1e-9
_DRAWS = 2000


def noise_bands(
    base_hits_u: ArrayLike,
    n_base_u: ArrayLike,
    n_again_u: ArrayLike,
    threshold: int = 1,
    *,
    confidence: float = 0.95,
) -> dict[str, Estimate]:
    """What a second sample of the base would lose and gain, and its SRR, NDR, SDS and NSCR: by the names in `BANDED`.

    Args:
        base_hits_u: how many of the base's samples hit each unit; the units are all there are, hit or not.
        n_base_u: the base's samples of each unit's problem, or one number for all.
        n_again_u: the same for the second sample: as many as the policy has.
        threshold: hits from which a unit is in support.
        confidence: the chance that a number of the second sample lies in its band; higher because counts are integers.

    `value` is that of the expected counts. Everything is NaN where a pool of one sample a problem tells nothing.

    >>> from offleash.eval.stats.bands import noise_bands
    >>> lost = noise_bands([1, 1, 2, 0, 30, 22], 64, 64)["shrunk"]
    >>> round(lost.value, 2), lost.low, lost.high
    (0.95, 0.0, 3.0)
    """
    check_threshold(threshold)
    _check_confidence(confidence)
    hits, n = check_draws("base", np.asarray(base_hits_u), n_base_u)
    if not hits.size or n.max() < 2:
        return dict.fromkeys(BANDED, Estimate(np.nan, np.nan, np.nan, hits.size))
    out_u = fewer_again(fit_beta_binomial(hits, n), hits, n, np.broadcast_to(n_again_u, hits.shape), threshold)
    in_base = hits >= threshold
    lost_s, lost = _poisson_binomial(out_u[in_base])
    gained_e, gained = _poisson_binomial(1 - out_u[~in_base])
    chance_se = np.outer(lost, gained)
    s, e = (grid.astype(np.float64) for grid in np.meshgrid(lost_s, gained_e, indexing="ij"))
    kept = float(in_base.sum())
    expected = (float(out_u[in_base].sum()), float((1 - out_u[~in_base]).sum()))
    value = {"shrunk": expected[0], "expanded": expected[1]}
    value |= {name: float(one) for name, one in metrics([kept - expected[0], *expected, 0.0]).items()}
    shown = {"shrunk": s, "expanded": e} | metrics(np.stack([kept - s, s, e, np.zeros_like(s)], axis=-1))
    return {name: _band(value[name], shown[name], chance_se, hits.size, confidence) for name in BANDED}


def pass_bands(
    correct_p: ArrayLike,
    n_base_p: ArrayLike,
    n_again_p: ArrayLike,
    ks: ArrayLike,
    *,
    confidence: float = 0.95,
    rng: np.random.Generator | None = None,
) -> list[Estimate]:
    """The same for pass@k, one Estimate for each of `ks`; `value` is the mean over second samples.

    `rng`: None is a fixed seed, so that equal counts give equal numbers.
    """
    _check_confidence(confidence)
    correct, n = check_draws("base", np.asarray(correct_p), n_base_p)
    budgets = np.atleast_1d(np.asarray(ks))
    if not correct.size or n.max() < 2:
        return [Estimate(np.nan, np.nan, np.nan, correct.size)] * budgets.size
    rng = np.random.default_rng(0) if rng is None else rng
    again = np.broadcast_to(n_again_p, correct.shape)
    rate_bp = rng.beta(*fit_beta_binomial(correct, n).posterior(correct, n), size=(_DRAWS, correct.size))
    again_bp = rng.binomial(again, rate_bp)
    pass_bpk = pass_at_k(again_bp.ravel(), np.tile(again, _DRAWS), budgets).reshape(_DRAWS, correct.size, -1)
    means_bk = pass_bpk.mean(axis=1)
    return [interval(float(mean_b.mean()), mean_b, correct.size, confidence) for mean_b in means_bk.T]


def _poisson_binomial(chance_u: Floats) -> tuple[Ints, Floats]:
    """The counts that are not next to impossible, and their probabilities."""
    pmf = np.ones(1)
    for chance in chance_u.tolist():
        pmf = np.convolve(pmf, [1 - chance, chance])
    counts = np.flatnonzero(pmf > _NEGLIGIBLE)
    return counts, pmf[counts] / pmf[counts].sum()


def _band(value: float, shown_x: Floats, chance_x: Floats, n: int, confidence: float) -> Estimate:
    """Quantiles of a weighted distribution; where a number is undefined (NaN) it is left out."""
    known = ~np.isnan(shown_x)
    if np.isnan(value) or not known.any():
        return Estimate(value, np.nan, np.nan, n)
    order = np.argsort(shown_x[known], kind="stable")
    values, below = shown_x[known][order], np.cumsum(chance_x[known][order])
    tail = (1 - confidence) / 2
    at = np.searchsorted(below, np.array([tail, 1 - tail]) * below[-1])
    low, high = values[np.minimum(at, values.size - 1)]
    return Estimate(value, min(float(low), value), max(float(high), value), n)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must lie strictly between 0 and 1, got {confidence}")
