"""The posterior view against closed forms, integration and simulation."""

import math

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.posterior import posterior_dynamics, posterior_sensitivity, probability_above
from offleash.eval.stats.support import dynamics, floor, floor_exact


@pytest.mark.parametrize("n", [1, 5, 40, 400])
def test_under_a_flat_prior_the_posterior_is_a_binomial_tail(n: int) -> None:
    for eps in (0.001, 0.2, 0.77):
        for hits in {0, n // 2, n}:
            tail = sum(math.comb(n + 1, i) * eps**i * (1 - eps) ** (n + 1 - i) for i in range(hits + 1))
            assert float(probability_above(hits, n, eps, prior=1)) == pytest.approx(tail, rel=1e-10)


@pytest.mark.parametrize(("hits", "n"), [(0, 8192), (5, 8192), (4000, 8192), (2, 5), (16384, 16384)])
def test_the_posterior_matches_numerical_integration(hits: int, n: int) -> None:
    # t = sin^2(u) takes the singular ends of the density away.
    a, b = hits + 0.5, n - hits + 0.5
    mean = a / (a + b)
    for x in (0.5 * mean, mean, min(0.999999, 1.2 * mean)):
        u = np.linspace(0, math.asin(math.sqrt(x)), 400_001)[1:]
        log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
        density = np.exp((2 * a - 1) * np.log(np.sin(u)) + (2 * b - 1) * np.log(np.cos(u)) + math.log(2) - log_beta)
        step = u[1] - u[0]
        first = density[0] if a == 0.5 else 0.0
        integral = float(step * (density.sum() - density[-1] / 2 + first / 2))
        assert 1 - float(probability_above(hits, n, x)) == pytest.approx(integral, rel=2e-5, abs=1e-9)


def test_a_small_posterior_probability_keeps_its_digits() -> None:
    # The rate is above 1/2 after 0 hits in 100 draws: 1e-31 or so, far below what 1 - cdf could hold.
    assert float(probability_above(0, 100, 0.5, prior=1)) == pytest.approx(0.5**101, rel=1e-10)


def test_posterior_broadcasts() -> None:
    assert probability_above(np.zeros((3, 1)), np.array([1, 2, 4]), 0.1).shape == (3, 3)


def test_more_hits_make_a_unit_more_surely_above_the_floor() -> None:
    n, eps = 8192, floor(8192)
    chance = probability_above(np.arange(13), n, eps)
    assert np.all(np.diff(chance) > 0)
    assert chance[0] == pytest.approx(math.erfc(math.sqrt(-math.log(0.05))), rel=2e-3)  # chi-square, one degree
    assert 0.05 < chance[1] < 0.15  # one hit is far from sure
    assert chance[12] > 0.999
    assert probability_above([5], [10], 0.0)[0] == 1.0
    with pytest.raises(ConfigError):
        probability_above([3], [2], 0.1)
    with pytest.raises(ConfigError):
        probability_above([1], [2], 1.0)


def test_posterior_is_calibrated_when_rates_follow_the_prior() -> None:
    rng = np.random.default_rng(0)
    rate = rng.beta(0.5, 0.5, 60_000)
    hits = rng.binomial(20, rate)
    chance = probability_above(hits, 20, 0.1)
    for low, high in [(0.02, 0.3), (0.3, 0.7), (0.7, 0.98)]:
        inside = (chance > low) & (chance < high)
        assert inside.sum() > 500
        assert np.mean(rate[inside] > 0.1) == pytest.approx(chance[inside].mean(), abs=0.03)


def test_expected_table_sums_to_the_units_and_meets_the_counts_when_hits_are_decisive() -> None:
    rng = np.random.default_rng(1)
    base, policy = [500, 400, 0, 0, 300] * 20, [450, 0, 300, 0, 200] * 20
    result = posterior_dynamics(base, policy, 512, 512, 0.05, rng=rng)
    table = dynamics(base, policy)
    for name in ("preserved", "shrunk", "expanded", "out"):
        assert result[name].value == pytest.approx(getattr(table, name), abs=1e-6)
        assert result[name].low == pytest.approx(getattr(table, name))
    assert result["srr"].value == pytest.approx(table.srr)
    assert result["nscr"].n == 100


def test_expected_table_and_credible_intervals_match_draws_from_the_posterior() -> None:
    rng = np.random.default_rng(2)
    base, policy = rng.binomial(64, 0.03, 80), rng.binomial(96, 0.02, 80)
    eps = floor_exact(64)
    result = posterior_dynamics(base, policy, 64, 96, eps, rng=rng, draws=20_000)
    in_base = rng.beta(base + 0.5, 64 - base + 0.5, size=(20_000, 80)) > eps
    in_policy = rng.beta(policy + 0.5, 96 - policy + 0.5, size=(20_000, 80)) > eps
    p, s, e = (np.sum(x, axis=1) for x in (in_base & in_policy, in_base & ~in_policy, ~in_base & in_policy))
    drawn = {"preserved": p, "shrunk": s, "expanded": e, "out": 80 - p - s - e}
    assert sum(result[name].value for name in drawn) == pytest.approx(80)
    for name, counts in drawn.items():
        assert result[name].value == pytest.approx(counts.mean(), abs=5 * counts.std() / math.sqrt(20_000))
        assert [result[name].low, result[name].high] == pytest.approx(np.quantile(counts, [0.025, 0.975]), abs=1)
    both = (p + s > 0) & (p + e + s > 0)
    assert [result["srr"].low, result["srr"].high] == pytest.approx(
        np.quantile((p / np.maximum(p + s, 1))[both], [0.025, 0.975]), abs=0.03
    )
    nscr = ((e - s) / np.maximum(p + e + s, 1))[both]
    assert [result["nscr"].low, result["nscr"].high] == pytest.approx(np.quantile(nscr, [0.025, 0.975]), abs=0.03)


def test_a_higher_floor_leaves_less_in_support() -> None:
    rng = np.random.default_rng(3)
    base, policy = rng.binomial(256, 0.02, 100), rng.binomial(256, 0.02, 100)
    curve = posterior_sensitivity(base, policy, 256, 256, [1e-4, 1e-3, 1e-2, 1e-1], rng=rng, draws=200)
    out = [point["out"].value for point in curve]
    assert out == sorted(out)
    assert out[0] < 1
    assert out[-1] > 95
