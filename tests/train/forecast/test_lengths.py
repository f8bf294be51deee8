"""Lengths against draws of the distribution that they are taken from."""

import numpy as np
import pytest

from offleash.train.forecast.lengths import SPREAD, Lengths, _location, longest_size


@pytest.mark.parametrize(("mean", "limit"), [(500, 8192), (5000, 8192), (7500, 8192)])
def test_the_mean_is_the_given_one_and_the_longest_of_several_is_that_of_draws(mean, limit):
    rng = np.random.default_rng(0)
    drawn = np.minimum(np.exp(_location(mean, limit) + SPREAD * rng.standard_normal((40_000, 8))), limit)
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    for n in (1, 2, 8):
        found, longest = longest_size(mean, limit, n), drawn[:, :n].max(axis=1)
        assert found.tokens == pytest.approx(longest.mean(), rel=0.02)
        assert found.square == pytest.approx((longest**2).mean(), rel=0.03)


def test_batches_by_length_are_as_wide_as_those_of_draws():
    rng = np.random.default_rng(0)
    drawn = np.minimum(np.exp(_location(1000, 3072) + SPREAD * rng.standard_normal((4000, 64))), 3072)
    widest = np.sort(drawn, axis=1)[:, 3::4]
    found = Lengths(0, 1000, 3072).padded(4, 64)
    assert found.tokens == pytest.approx(widest.mean(), rel=0.01)
    assert found.square == pytest.approx((widest**2).mean(), rel=0.02)
    assert found.tokens < 0.7 * Lengths(0, 1000, 3072).padded(4).tokens
    assert Lengths(0, 1000, 3072).padded(4, 4) == Lengths(0, 1000, 3072).padded(4)


def test_a_mean_at_the_limit_is_no_distribution_and_a_prompt_is_added_to_the_square():
    assert longest_size(100, 100, 5) == (100, 100**2)
    assert Lengths(10, 100, 100).padded(3) == (110, 110**2)
    assert Lengths(10, 50, 100).padded().tokens == pytest.approx(60, rel=1e-3)
