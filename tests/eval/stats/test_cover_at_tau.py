"""cover@tau: counts by hand, the grid of c/n, its expectation in closed form, and what n samples cannot tell."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binom

from offleash.eval.errors import ConfigError
from offleash.eval.stats.passk import cover_at_tau, pass_at_k


def test_a_problem_is_covered_from_tau_on() -> None:
    np.testing.assert_equal(cover_at_tau([0, 1, 2, 8, 9, 10], 10, 0.2), [0, 0, 1, 1, 1, 1])
    np.testing.assert_equal(cover_at_tau([0, 1, 2, 7, 8, 10], 10, 0.8), [0, 0, 0, 0, 1, 1])


@pytest.mark.parametrize("tau", [0.1, 0.2, 0.3, 0.6, 0.7, 0.8, 0.9])
def test_a_rate_of_exactly_tau_counts_whatever_the_rounding(tau: float) -> None:
    for n in range(10, 200, 10):
        hits = round(tau * n)
        assert cover_at_tau([hits - 1, hits], n, tau).tolist() == [0, 1]


def test_too_few_samples_give_no_number() -> None:
    assert math.isnan(cover_at_tau([4], 4, 0.8)[0])
    assert cover_at_tau([5], 5, 0.8)[0] == 1
    np.testing.assert_equal(cover_at_tau([2, 0], [4, 0], 0.2), [math.nan, math.nan])


def test_pass_at_k_is_an_average_of_cover_over_tau() -> None:
    """pass@1 is its integral over tau: here a sum over the grid of c/n."""
    correct, n = np.array([0, 3, 11, 20]), 20
    taus = (np.arange(1, n) / n).tolist()
    covers = [cover_at_tau(correct, n, tau).mean() for tau in taus]
    whole = np.mean(correct == n)
    assert (sum(covers) + whole) / n == pytest.approx(pass_at_k(correct, n, [1]).mean())


def test_the_plug_in_is_a_step_that_n_samples_blur() -> None:
    """Its expectation is the binomial tail: near tau a coin flip, 1/sqrt(n) away from it nearly right."""
    n, tau = 64, 0.8
    counts = np.arange(n + 1)
    covered = cover_at_tau(counts, n, tau)
    for p, low, high in ((tau, 0.3, 0.7), (tau - 1 / 8, 0.0, 0.05), (tau + 1 / 8, 0.95, 1.0)):
        expected = float(np.sum(binom.pmf(counts, n, p) * covered))
        assert expected == pytest.approx(binom.sf(math.ceil(tau * n) - 1, n, p))
        assert low <= expected <= high


def test_what_is_no_rate_is_refused() -> None:
    for tau in (0, 1, -0.1, math.nan):
        with pytest.raises(ConfigError, match="tau"):
            cover_at_tau([1], 8, tau)
    for correct in ([9], [-1], [0.5], [math.nan]):
        with pytest.raises(ConfigError, match="correct_p"):
            cover_at_tau(correct, 8, 0.5)


def test_cover_at_k_is_the_fraction_of_subsets_with_that_rate() -> None:
    samples, k, tau = [1] * 3 + [0] * 5, 5, 0.4
    expected = np.mean([sum(subset) >= 2 for subset in combinations(samples, k)])
    assert cover_at_tau([3, 8], 8, tau, [k, k]).tolist() == pytest.approx([expected, 1.0])
    assert math.isnan(cover_at_tau([3], 8, tau, [1])[0])
    assert cover_at_tau([3], 8, tau, [8]).tolist() == cover_at_tau([3], 8, tau).tolist()
