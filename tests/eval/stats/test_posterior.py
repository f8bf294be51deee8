"""Support above a threshold by empirical Bayes: the joint posterior against simulation, decisive hits, edges.

Coverage on the lab, where the truth is known exactly, is in tests/eval/scoring/test_exact.py.
"""

import math

import numpy as np
import pytest
from scipy.special import betaincinv, ndtr

from offleash.eval.errors import ConfigError
from offleash.eval.stats.beta_binomial import BetaBinomial, fit_beta_binomial, refit
from offleash.eval.stats.posterior import expected_metrics, posterior_dynamics
from offleash.eval.stats.support import CELLS, METRICS, dynamics, metrics


def tied_rates(rng: np.random.Generator, units: int, base: BetaBinomial, policy: BetaBinomial, correlation: float):
    z = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], units)
    return betaincinv(*base, ndtr(z[:, 0])), betaincinv(*policy, ndtr(z[:, 1]))


@pytest.mark.parametrize("correlation", [-0.6, 0.0, 0.8])
@pytest.mark.parametrize(("n_base", "n_policy"), [(64, 64), (32, 256)])
def test_expected_tables_are_right_when_rates_are_as_assumed(correlation: float, n_base: int, n_policy: int) -> None:
    rng = np.random.default_rng(1)
    units = 6000
    base_rate, policy_rate = tied_rates(rng, units, BetaBinomial(0.6, 9), BetaBinomial(0.3, 3), correlation)
    base, policy = rng.binomial(n_base, base_rate), rng.binomial(n_policy, policy_rate)
    epsilons = [1 / 512, 1 / 64, 1 / 8]
    found = posterior_dynamics(base, policy, n_base, n_policy, epsilons, rng=rng, resamples=100)
    for eps, result in zip(epsilons, found, strict=True):
        in_base, in_policy = base_rate > eps, policy_rate > eps
        truth = [in_base & in_policy, in_base & ~in_policy, ~in_base & in_policy, ~in_base & ~in_policy]
        counts = [float(cell.sum()) for cell in truth]
        assert [result[cell].value for cell in CELLS] == pytest.approx(counts, abs=0.02 * units)
        assert sum(result[cell].value for cell in CELLS) == pytest.approx(units)
        values = metrics(counts)
        for name in METRICS:
            assert result[name].value == pytest.approx(values[name], abs=0.05), (eps, name)
            assert expected_metrics(base, policy, n_base, n_policy, eps)[name] == pytest.approx(
                result[name].value, abs=0.01
            )


def test_the_table_meets_the_counts_when_hits_are_decisive() -> None:
    rng = np.random.default_rng(1)
    base, policy = [500, 400, 0, 0, 300] * 20, [450, 0, 300, 0, 200] * 20
    (result,) = posterior_dynamics(base, policy, 512, 512, [0.05], np.repeat(np.arange(20), 5), rng=rng)
    table = dynamics(base, policy)
    for name in CELLS:
        assert result[name].value == pytest.approx(getattr(table, name), abs=0.1)
        assert result[name].low <= getattr(table, name) <= result[name].high
    assert result["srr"].value == pytest.approx(table.srr, abs=0.01)
    assert result["nscr"].n == 20


def test_a_higher_threshold_leaves_less_in_support() -> None:
    rng = np.random.default_rng(3)
    base, policy = rng.binomial(256, 0.02, 100), rng.binomial(256, 0.02, 100)
    found = posterior_dynamics(base, policy, 256, 256, [1e-4, 1e-3, 1e-2, 1e-1], rng=rng, resamples=100)
    out = [result["out"].value for result in found]
    assert out == sorted(out)
    assert out[0] < 1
    assert out[-1] > 95


def test_a_zero_is_not_certain_and_its_bound_is_the_rule_of_three() -> None:
    rng = np.random.default_rng(4)
    (result,) = posterior_dynamics([60] * 40, [62] * 40, 64, 64, [0.1], rng=rng, resamples=4000)
    assert result["shrunk"].value < 0.01
    assert result["shrunk"].low == 0
    assert result["shrunk"].high == pytest.approx(3, abs=0.4)
    assert result["srr"].low < 0.97


@pytest.mark.parametrize(
    ("base", "policy", "n"),
    [([0, 0, 0], [0, 0, 0], 8), ([8, 8], [8, 8], 8), ([1], [0], 1), ([0] * 50, [8] * 50, 8), ([3], [4], 8)],
)
def test_edges_stay_finite_and_ordered(base: list[int], policy: list[int], n: int) -> None:
    for result in posterior_dynamics(base, policy, n, n, [0.01, 0.3], rng=np.random.default_rng(0), resamples=50):
        for name in CELLS:
            assert 0 <= result[name].low <= result[name].value <= result[name].high < math.inf
        assert sum(result[cell].value for cell in CELLS) == pytest.approx(len(base))


def test_what_cannot_be_answered_is_refused_by_name() -> None:
    rng = np.random.default_rng(0)
    for hits, epsilons in (([], [0.1]), ([1], [0.2, 0.1]), ([1], [0.0]), ([1], [1.0])):
        with pytest.raises(ConfigError, match="ascending thresholds"):
            posterior_dynamics(hits, hits, 8, 8, epsilons, rng=rng)
    assert all(math.isnan(value) for value in expected_metrics([], [], 8, 8, 0.1).values())


def test_one_step_refits_follow_full_refits() -> None:
    rng = np.random.default_rng(5)
    problems, units = 60, 300
    problem = rng.integers(0, problems, units)
    hits = rng.binomial(64, rng.beta(0.5, 6, units))
    fit = fit_beta_binomial(hits, 64)
    times = rng.multinomial(problems, np.full(problems, 1 / problems), size=30)
    a_b, b_b = refit(fit, hits, 64, problem, times.astype(float))
    full = [fit_beta_binomial(np.repeat(hits, row[problem]), 64) for row in times]
    for moved, exact, value in ((a_b, [f.a for f in full], fit.a), (b_b, [f.b for f in full], fit.b)):
        assert np.corrcoef(np.log(moved), np.log(exact))[0, 1] > 0.97
        assert np.std(np.log(moved)) == pytest.approx(np.std(np.log(exact)), rel=0.2)
        assert np.mean(np.log(moved / value)) == pytest.approx(np.mean(np.log(np.array(exact) / value)), abs=0.05)


@pytest.mark.parametrize("policy", [[0, 0, 0, 0], [8, 8, 8, 8]])
def test_no_metric_is_made_of_rounding_and_no_count_exceeds_the_units(policy: list[int]) -> None:
    (found,) = posterior_dynamics([0] * 4, policy, 8, 8, [1 / 4], rng=np.random.default_rng(0))
    assert np.isnan(found["srr"].value)
    assert np.isnan(found["nscr"].value) == (sum(policy) == 0)
    assert all(found[cell].high <= 4 + 1e-9 for cell in ("preserved", "shrunk", "expanded", "out"))
    (found,) = posterior_dynamics([0] * 4, [0] * 4, 8, 8, [1 / 16], rng=np.random.default_rng(0))
    assert all(np.isnan(found[name].value) for name in ("srr", "ndr", "sds", "nscr"))
