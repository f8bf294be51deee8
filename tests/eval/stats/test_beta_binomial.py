"""The fitted Beta: recovers what it is given, closed forms, edges. The mixture: posterior, fit, weights of units."""

import math

import numpy as np
import pytest
from scipy.stats import beta, binom

from offleash.eval.errors import ConfigError
from offleash.eval.stats.beta_binomial import _A, _B, BetaBinomial, Rates, fit_beta_binomial


@pytest.mark.parametrize(("a", "b"), [(0.2, 3.0), (0.5, 20.0), (2.0, 5.0), (8.0, 2.0)])
@pytest.mark.parametrize("truncated", [False, True])
def test_the_fit_recovers_the_parameters_of_many_units(a: float, b: float, truncated: bool) -> None:
    rng = np.random.default_rng(7)
    hits = rng.binomial(64, rng.beta(a, b, 20_000))
    fit = fit_beta_binomial(hits[hits > 0] if truncated else hits, 64, truncated=truncated)
    assert fit.a == pytest.approx(a, rel=0.08)
    assert fit.b == pytest.approx(b, rel=0.08)


def test_unequal_draws_are_fitted_together() -> None:
    rng = np.random.default_rng(3)
    n = rng.choice([8, 64, 256], 20_000)
    fit = fit_beta_binomial(rng.binomial(n, rng.beta(0.4, 4.0, n.size)), n)
    assert (fit.a, fit.b) == pytest.approx((0.4, 4.0), rel=0.08)


def test_the_fit_is_the_maximum_of_a_brute_force_grid() -> None:
    hits, n = np.array([0, 0, 1, 3, 7, 8]), 8
    grid = np.exp(np.linspace(math.log(0.05), math.log(20), 160))

    def likelihood(a: float, b: float) -> float:
        ln = math.lgamma
        beta = ln(a) + ln(b) - ln(a + b)
        return sum(ln(a + c) + ln(b + n - c) - ln(a + b + n) - beta for c in hits.tolist())

    best = max((likelihood(a, b), a, b) for a in grid for b in grid)
    fit = fit_beta_binomial(hits, n)
    assert likelihood(fit.a, fit.b) >= best[0] - 1e-9
    assert (fit.a, fit.b) == pytest.approx(best[1:], rel=0.06)


def test_missing_is_a_product_of_urn_draws() -> None:
    fit = BetaBinomial(0.7, 2.5)
    urn = math.prod((2.5 + i) / (0.7 + 2.5 + i) for i in range(12))
    assert fit.miss(12) == pytest.approx(urn, rel=1e-12)


def test_edges_stay_finite() -> None:
    never = fit_beta_binomial([0, 0, 0], 64)
    assert never.miss(64) > 0.999
    always = fit_beta_binomial([64, 64], 64)
    assert always.miss(64) < 1e-3
    alike = fit_beta_binomial([32] * 50, 64)
    assert alike.a / (alike.a + alike.b) == pytest.approx(0.5, abs=1e-3)
    once = fit_beta_binomial([1] * 40, 64, truncated=True)
    assert math.isfinite(once.a + once.b)


@pytest.mark.parametrize(("hits", "n"), [([5], 4), ([-1], 4), ([math.nan], 4), ([0], 0), ([], 4)])
def test_impossible_counts_are_refused(hits: list[float], n: int) -> None:
    with pytest.raises(ConfigError):
        fit_beta_binomial(hits, n)


def test_rates_are_drawn_from_the_posterior() -> None:
    rng = np.random.default_rng(0)
    hits, n = np.array([0, 0, 3, 40, 1]), np.array([50, 50, 50, 50, 20])
    rates = Rates.fitted(hits, n)
    q = np.geomspace(1e-11, 1 - 1e-9, 40_001)
    middle, width = (q[1:] + q[:-1]) / 2, np.diff(q)
    prior = sum(share * beta.pdf(middle, a, b) for share, a, b in zip(rates.share_g, _A, _B, strict=True))
    drawn_u = rates.draw(20_000, rng).mean(axis=0)
    for u in range(5):
        weight = width * prior * binom.pmf(hits[u], n[u], middle)
        assert drawn_u[u] == pytest.approx(float(weight @ middle / weight.sum()), rel=0.05)


@pytest.mark.parametrize(("a", "b"), [(0.3, 3.0), (2.0, 30.0), (0.8, 0.4)])
def test_the_fit_finds_the_share_of_units_that_a_second_sample_hits(a: float, b: float) -> None:
    rng = np.random.default_rng(1)
    rate_u = rng.beta(a, b, 4000)
    drawn_bu = Rates.fitted(rng.binomial(64, rate_u), 64).draw(20, rng)
    for k in (1, 16, 128):
        assert np.mean(1 - (1 - drawn_bu) ** k) == pytest.approx(np.mean(1 - (1 - rate_u) ** k), abs=0.015)


def test_a_unit_of_much_weight_counts_like_many() -> None:
    hits, n = np.array([0, 0, 5, 0]), 64
    heavy_u = np.array([1.0, 1.0, 97.0, 1.0])
    twice = Rates.fitted(np.repeat(hits, heavy_u.astype(int)), n).draw(4000, np.random.default_rng(2))
    weighted = Rates.fitted(hits, n).draw_weighted(np.tile(heavy_u, (4000, 1)), np.random.default_rng(3))
    assert weighted[:, 0].mean() == pytest.approx(twice[:, 0].mean(), rel=0.25)
    assert weighted[:, 0].mean() > 5 * Rates.fitted(hits, n).draw(4000, np.random.default_rng(4))[:, 0].mean()


def test_fewer_than_each_is_fewer_again_at_every_threshold() -> None:
    rates = Rates.fitted([0, 3, 3, 10, 0, 1], [10, 10, 12, 10, 10, 12])
    thresholds = [1, 2, 5, 9, 12]
    for row, threshold in zip(rates.fewer_than_each(9, thresholds), thresholds, strict=True):
        np.testing.assert_allclose(row, rates.fewer_again(9, threshold), rtol=1e-7, atol=1e-9)
