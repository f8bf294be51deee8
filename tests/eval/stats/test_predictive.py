"""What a second sample of the base would move: closed forms, and the truth by simulation."""

import math

import numpy as np
import pytest

from offleash.eval.stats.beta_binomial import BetaBinomial
from offleash.eval.stats.predictive import expected_moves, fewer_again, fewer_than_each


def test_fewer_again_is_an_urn_sum() -> None:
    fit, k = BetaBinomial(0.7, 2.5), 9
    a, b = 0.7 + 3, 2.5 + 7

    def exactly(j: int) -> float:
        up = math.prod(a + i for i in range(j)) * math.prod(b + i for i in range(k - j))
        return math.comb(k, j) * up / math.prod(a + b + i for i in range(k))

    for threshold in (1, 2, 5):
        assert fewer_again(fit, 3, 10, k, threshold) == pytest.approx(sum(map(exactly, range(threshold))), rel=1e-12)
    assert fewer_again(fit, 3, 10, 2, 5) == pytest.approx(1.0)


def test_fewer_than_each_is_fewer_again_at_every_threshold() -> None:
    fit, hits, n = BetaBinomial(0.7, 2.5), np.array([0, 3, 3, 10]), np.array([10, 10, 12, 10])
    thresholds = [1, 2, 5, 9, 12]
    found = fewer_than_each(fit, hits, n, 9, thresholds)
    for row, threshold in zip(found, thresholds, strict=True):
        assert row == pytest.approx(fewer_again(fit, hits, n, 9, threshold), rel=1e-10)


@pytest.mark.parametrize(("n", "again", "threshold"), [(64, 64, 1), (64, 256, 1), (256, 64, 1), (128, 128, 5)])
@pytest.mark.parametrize("listed", [True, False])
def test_it_is_the_mean_of_many_second_samples(n: int, again: int, threshold: int, listed: bool) -> None:
    rng = np.random.default_rng(5)
    found, truth = [], []
    for _ in range(20):
        rate = rng.beta(0.4, 8.0, 1500)
        hits = rng.binomial(n, rate)
        shown = hits > 0 if not listed else np.ones(hits.size, bool)
        held = hits >= threshold
        moves = expected_moves(hits[shown], np.full(shown.sum(), n), again, held[shown], threshold, listed=listed)
        second = np.array([rng.binomial(again, rate) for _ in range(20)]) >= threshold
        found.append(moves)
        truth.append([(held & ~second).sum(axis=1).mean(), (~held & second).sum(axis=1).mean()])
    assert np.mean(found, axis=0) == pytest.approx(np.mean(truth, axis=0), rel=0.05 if listed else 0.12)


def test_at_k_below_n_the_fraction_in_support_counts() -> None:
    hits, n = np.array([0, 1, 5, 40]), np.full(4, 64)
    whole = expected_moves(hits, n, 16, np.array([0.0, 1.0, 1.0, 1.0]))
    half = expected_moves(hits, n, 16, np.array([0.0, 0.5, 0.5, 0.5]))
    assert half.shrunk == pytest.approx(whole.shrunk / 2)
    assert half.expanded > whole.expanded


def test_nothing_and_one_draw() -> None:
    none = np.array([], dtype=np.int64)
    assert expected_moves(none, none, 4, none) == (0.0, 0.0)
    one = expected_moves(np.array([1, 0]), np.array([1, 1]), 1, np.array([1, 0]))
    assert all(map(math.isnan, one))
    unseen = expected_moves(np.array([0, 0]), np.array([8, 8]), 8, np.array([0, 0]), listed=False)
    assert all(map(math.isnan, unseen))
