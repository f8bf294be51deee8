"""The interval against known variances, and how often it covers."""

import math

import numpy as np
import pytest

from offleash.train.variants.planned.exact import problem_sets
from offleash.train.variants.planned.twoway import two_way


def means(values_sp: np.ndarray, groups: int = 20) -> np.ndarray:
    """Of each seed over all problems, and without each group."""
    set_gp = problem_sets(values_sp.shape[1], groups).astype(float)
    return set_gp @ values_sp.T / set_gp.sum(axis=1, keepdims=True)


def test_the_jackknife_of_a_mean_over_problems_is_its_textbook_error():
    """One problem to a group: the delete-one jackknife of a mean is exactly s / sqrt(n)."""
    value_p = np.random.default_rng(0).normal(size=12)
    found = two_way(means(np.vstack([value_p, value_p]), groups=12))  # seeds that do not differ
    half = 2.2009852 * value_p.std(ddof=1) / math.sqrt(12)
    assert found == pytest.approx((value_p.mean(), value_p.mean() - half, value_p.mean() + half, 2))


def test_without_noise_of_problems_it_is_the_t_interval_over_seeds():
    found = two_way(np.broadcast_to(np.array([1.0, 2.0, 3.0]), (21, 3)))
    half = 4.302653 / math.sqrt(3)
    assert found == pytest.approx((2.0, 2.0 - half, 2.0 + half, 3), rel=1e-6)


def test_one_seed_and_undefined_values_have_no_interval_and_no_noise_has_no_width():
    assert math.isnan(two_way(np.ones((21, 1))).low)
    assert math.isnan(two_way(np.array([[0.1, 0.2], [0.1, math.nan], [0.1, 0.2]])).low)
    assert two_way(np.full((21, 3), 0.1)) == pytest.approx((0.1, 0.1, 0.1, 3))


@pytest.mark.parametrize("spread", [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 3.0, 3.0)])
def test_it_covers_whatever_varies(spread):
    """8 seeds x 60 problems; noise of seeds, of problems, of both together."""
    rng, covered, trials = np.random.default_rng(1), 0, 600
    for _ in range(trials):
        s, p, both = (of * rng.normal(size=size) for of, size in zip(spread, ((8, 1), (1, 60), (8, 60)), strict=True))
        found = two_way(means(s + p + both))
        covered += found.low <= 0 <= found.high
    assert covered / trials > 0.93


def test_the_interval_over_seeds_alone_would_not_cover_other_problems():
    rng, covered, trials = np.random.default_rng(2), 0, 300
    for _ in range(trials):
        values_gs = means(rng.normal(size=(1, 60)) + 0.1 * rng.normal(size=(8, 60)))
        alone = two_way(np.broadcast_to(values_gs[0], values_gs.shape))
        covered += alone.low <= 0 <= alone.high
    assert covered / trials < 0.5
