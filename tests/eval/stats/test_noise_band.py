"""The band of what noise loses and gains: closed forms, and the truth by simulation."""

import math

import numpy as np
import pytest

from offleash.eval.stats.noise_band import noise_band, sum_of_coins
from offleash.eval.stats.predictive import expected_moves


def test_a_sum_of_coins_is_their_convolution() -> None:
    equal = sum_of_coins(np.full(9, 0.3))
    assert equal == pytest.approx([math.comb(9, i) * 0.3**i * 0.7 ** (9 - i) for i in range(10)])
    unequal = sum_of_coins(np.array([0.1, 0.9, 0.0, 1.0]))
    assert unequal == pytest.approx([0.0, 0.9 * 0.1, 0.1 * 0.1 + 0.9 * 0.9, 0.1 * 0.9])


@pytest.mark.parametrize(("n", "again"), [(64, 64), (64, 256)])
def test_second_samples_fall_into_the_band_as_often_as_it_says(n: int, again: int) -> None:
    rng = np.random.default_rng(3)
    inside = []
    for _ in range(40):
        rate = rng.beta(0.4, 8.0, 600)
        hits = rng.binomial(n, rate)
        band = noise_band(hits, np.full(hits.size, n), again)
        second = rng.binomial(again, rate, (25, hits.size)) > 0
        lost, gained = ((hits > 0) & ~second).sum(axis=1), ((hits == 0) & second).sum(axis=1)
        inside += [(low <= count) & (count <= high) for (low, high), count in zip(band, (lost, gained), strict=True)]
    assert 0.93 < np.mean(inside) < 0.985


def test_the_band_holds_the_expectation_and_widens_with_coverage() -> None:
    hits = np.array([0] * 30 + [1] * 20 + [3] * 10 + [40] * 10)
    n = np.full(hits.size, 64)
    mean = expected_moves(hits, n, 64, hits > 0)
    narrow, wide = noise_band(hits, n, 64, coverage=0.5), noise_band(hits, n, 64, coverage=0.99)
    for expected, inner, outer in zip(mean, narrow, wide, strict=True):
        assert outer.low < inner.low <= expected <= inner.high < outer.high


def test_nothing_and_one_draw() -> None:
    none = np.array([], dtype=np.int64)
    assert noise_band(none, none, 4) == ((0.0, 0.0), (0.0, 0.0))
    assert all(math.isnan(edge) for band in noise_band(np.array([1, 0]), np.array([1, 1]), 1) for edge in band)
