"""The mixture of Betas: its posterior against numerical integration, its fit, and weights of units."""

import numpy as np
import pytest
from scipy.stats import beta, binom

from offleash.eval.stats.leash.rates import _A, _B, Rates


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
