"""Strength: the deals are the multivariate hypergeometric, Holm is Holm, and the test finds what the count misses."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from offleash.eval.stats.noise import noise_test
from offleash.eval.stats.strength import beyond_chance, deal, holm, p_of_deals, strength


def test_deals_are_every_way_to_deal_the_samples_equally_often() -> None:
    totals, n_here, n_there = [2, 1, 1], 3, 2
    labels = [u for u, t in enumerate(totals) for _ in range(t)] + [-1]
    exact = Counter(
        tuple(sum(labels[i] == u for i in dealt) for u in range(3))
        for dealt in itertools.combinations(range(5), n_here)
    )
    # Two problems, interleaved: the second has one unit with all its draws.
    total_u, problem_u = np.array([2, 4, 1, 1]), np.array([0, 1, 0, 0])
    n_here_u, n_there_u = np.array([n_here, 2, n_here, n_here]), np.array([n_there, 2, n_there, n_there])
    dealt = deal(
        total_u, n_here_u, n_there_u, problem_u, lambda x: x, rng=np.random.default_rng(0), deals=20_000
    ).tolist()
    assert {row[1] for row in dealt} == {2}
    found = Counter((a, b, c) for a, _, b, c in dealt)
    assert set(found) == set(exact)
    for way, times in exact.items():
        share = times / math.comb(5, n_here)
        assert found[way] / 20_000 == pytest.approx(share, abs=5 * math.sqrt(share / 20_000))


def test_holm_by_hand() -> None:
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])).tolist() == [True, False, False, True]
    assert holm(np.array([0.02, 0.02])).tolist() == [True, True]
    assert holm(np.array([0.05])).tolist() == [True]
    assert holm(np.empty(0)).tolist() == []


def test_units_without_a_hit_do_not_count_against_the_others() -> None:
    moved, chance = np.array([True] + [False] * 99), np.full(100, 0.01)
    hit = np.arange(100) < 3
    assert beyond_chance(moved, chance, hit).tolist() == [True] + [False] * 99
    assert not beyond_chance(moved, chance, np.ones(100, bool)).any()


def test_strength_is_a_sum_of_logarithms() -> None:
    chance = np.array([0.5, 0.25, 0.0])
    assert strength(np.array([True, True, False]), chance) == pytest.approx(math.log(8))
    assert strength(np.array([[True, False, False], [False, False, False]]), chance) == pytest.approx([math.log(2), 0])


def test_ties_count_as_at_least_as_large() -> None:
    assert p_of_deals(0.1 + 0.2, np.array([0.3, 0.3, 0.0])) == 0.75


def test_p_is_valid_under_no_change_with_several_units_per_problem_and_unequal_pools() -> None:
    rng = np.random.default_rng(1)
    rate_pa = np.tile([0.3, 0.1, 0.05, 0.02, 0.53], (12, 1))
    problem = np.repeat(np.arange(12), 4)
    trials = 120
    ps = []
    for _ in range(trials):
        base, policy = (np.array([rng.multinomial(n, row)[:-1] for row in rate_pa]).ravel() for n in (24, 12))
        test = noise_test(base, policy, 24, 12, problem, rng=rng)
        ps.append([test.shrunk.p_strength, test.expanded.p_strength])
    for level in (0.05, 0.2, 0.5):
        error = 4 * math.sqrt(level * (1 - level) / trials)
        assert np.all(np.mean(np.array(ps) <= level, axis=0) <= level + error)
    assert 0.4 < np.mean(ps) < 0.75  # conservative by its ties, not by more


@pytest.mark.parametrize("seed", [0, 1])
def test_it_finds_losses_that_the_count_does_not(seed: int) -> None:
    """500 problems, k = 256, 2 % lost while the rate of the rest triples."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(12):
        rate = rng.beta(0.5, 3.0, 500)
        policy = np.where(rng.random(500) < 0.02, 0.0, np.minimum(3 * rate, 1.0))
        lost = noise_test(rng.binomial(256, rate), rng.binomial(256, policy), 256, 256).shrunk
        found.append([lost.p_strength < 0.05, lost.p < 0.05])
    strength_power, count_power = np.mean(found, axis=0)
    assert strength_power >= 0.75
    assert count_power <= 0.5


@pytest.mark.parametrize(("n", "hits"), [(1024, 900), (2048, 1000), (8192, 6000)])
def test_a_loss_whose_chance_is_too_small_for_a_float_is_the_strongest(n: int, hits: int) -> None:
    lost = noise_test([hits, 1, 3], [0, 2, 1], n, n).shrunk
    assert lost.sure_u.tolist() == [True, False, False]
    assert lost.p_strength < 0.001
