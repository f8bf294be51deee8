"""Against tables, closed forms and simulation."""

import math

import numpy as np
import pytest

from offleash.train.variants.significance import mean_over_seeds, paired, t_quantile, upper_tail, welch


@pytest.mark.parametrize(
    ("q", "df", "table"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.95, 2, 2.91999), (0.975, 10, 2.228139)],
)
def test_quantiles_are_those_of_the_tables(q, df, table):
    assert t_quantile(q, df) == pytest.approx(table, rel=1e-5)
    assert upper_tail(t_quantile(q, df + 0.37), df + 0.37) == pytest.approx(1 - q, rel=1e-8)


def test_p_has_its_closed_forms():
    assert upper_tail(1.0, 1) == pytest.approx(0.25)  # Cauchy
    t = 1.7
    assert 2 * upper_tail(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert upper_tail(0.0, 7) == 0.5
    assert upper_tail(-t, 5) == pytest.approx(1 - upper_tail(t, 5))


def test_a_mean_has_the_interval_worked_by_hand():
    e = mean_over_seeds([1.0, 2.0, 3.0, math.nan])
    half = 4.302653 / math.sqrt(3)
    assert e == pytest.approx((2.0, 2.0 - half, 2.0 + half, 3), rel=1e-6)
    cut = mean_over_seeds([0.8, 1.0], within=(0.0, 1.0))  # the t interval is .9 ± 1.27
    assert cut == pytest.approx((0.9, 0.0, 1.0, 2))
    one = mean_over_seeds([0.5])
    assert one.value == 0.5
    assert math.isnan(one.low)
    assert math.isnan(mean_over_seeds([math.nan]).value)


def test_paired_is_worked_by_hand():
    d = paired([1.0, 2.0, 4.0], [0.0, 1.0, 1.0])  # gaps 1, 1, 3: mean 5/3, error 2/3
    t = (5 / 3) / (2 / 3)
    assert d.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert d.estimate.low == pytest.approx(5 / 3 - 4.302653 * 2 / 3, rel=1e-6)
    assert d.method == "paired"


def test_welch_is_worked_by_hand():
    d = welch([1.0, 3.0], [0.0, 1.0, 2.0])  # variances of the means 1 and 1/3, df = (4/3)^2 / (1 + 1/18) = 32/19
    assert d.estimate.value == 1.0
    assert d.p == pytest.approx(2 * upper_tail(1 / math.sqrt(4 / 3), 32 / 19))
    assert d.estimate.n == 2


def test_what_cannot_be_tested_has_no_p():
    assert math.isnan(paired([0.3], [0.1]).p)
    assert math.isnan(welch([0.3, 0.2], [0.1]).p)
    assert paired([0.3, 0.2], [0.3, 0.2]).p == 1.0
    shifted = paired([0.3, 0.2], [0.2, 0.1])  # the same gap twice, but for rounding: no noise to test against
    assert math.isnan(shifted.p)


@pytest.mark.parametrize(("method", "counts", "n"), [(paired, (3, 3), 1000), (welch, (10, 12), 120)])
def test_p_is_uniform_if_nothing_differs(method, counts, n):
    """Kolmogorov-Smirnov at 1 %."""
    rng = np.random.default_rng(7)
    ps = np.sort([method(*(rng.normal(0, 1, count) for count in counts)).p for _ in range(n)])
    grid = np.arange(n + 1) / n
    assert max(np.max(grid[1:] - ps), np.max(ps - grid[:-1])) < 1.63 / math.sqrt(n)


def test_intervals_cover_and_pairing_finds_what_noise_of_the_seed_hides():
    rng = np.random.default_rng(1)
    covered = [e.low <= 2 <= e.high for e in (mean_over_seeds(rng.normal(2, 1, 3)) for _ in range(2000))]
    assert 0.935 < np.mean(covered) < 0.965
    shared = rng.normal(0, 1, 5)
    ours, theirs = shared + 0.3 + rng.normal(0, 0.02, 5), shared + rng.normal(0, 0.02, 5)
    assert paired(ours, theirs).p < 1e-3 < welch(ours, theirs).p
