"""False discoveries stay rare: against the definition, by brute force, and on samples in which nothing changed."""

import itertools

import numpy as np
import pytest

from offleash.eval.browse.discovery import discoveries, moves
from offleash.eval.stats.strength import holm


def test_the_largest_rank_whose_p_is_small_enough_decides():
    p = np.array([0.04, 0.001, 0.9, 0.03, 0.012])
    # ranks: .001 <= .01, .012 <= .02, .03 <= .03, .04 <= .04, .9 > .05
    assert discoveries(p, 0.05).tolist() == [True, True, False, True, True]


def test_it_agrees_with_the_definition_in_every_order():
    for values in itertools.permutations([0.004, 0.02, 0.024, 0.2, 0.6]):
        p = np.array(values)
        largest = max((i for i in range(1, 6) if np.sort(p)[i - 1] <= 0.05 * i / 5), default=0)
        assert discoveries(p, 0.05).tolist() == (p <= np.sort(p)[largest - 1]).tolist()


def test_no_hypotheses_give_no_discoveries():
    assert discoveries(np.array([])).tolist() == []
    assert not discoveries(np.array([0.9, 0.8])).any()


def test_it_finds_at_least_what_holm_finds():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = rng.beta(0.3, 1, 40)
        assert not (holm(p) & ~discoveries(p)).any()


def test_a_firm_loss_is_a_discovery_and_a_single_hit_is_not():
    base, policy, n = np.array([40, 1, 20, 0]), np.array([0, 0, 25, 30]), np.full(4, 64)
    lost, gained = moves(base, policy, n, n)
    assert lost.tolist() == [True, False, False, False]
    assert gained.tolist() == [False, False, False, True]


@pytest.mark.parametrize("sizes", [(64, 64), (64, 256)])
def test_false_discoveries_are_rare_where_nothing_changed_and_where_much_did(sizes):
    """The rate is of what is named: with half of the units lost for good, the others must not be named more often."""
    rng, k, shares = np.random.default_rng(1), sizes, []
    n_base, n_policy = (np.full(300, size) for size in k)
    for _ in range(200):
        rate = rng.beta(0.4, 4, 300)
        gone = np.arange(300) < 60
        base, policy = rng.binomial(n_base, rate), rng.binomial(n_policy, np.where(gone, 0, rate))
        named = np.logical_or(*moves(base, policy, n_base, n_policy))
        shares.append((named & ~gone).sum() / max(named.sum(), 1))
    assert np.mean(shares) <= 0.05


def test_units_of_one_problem_compete_and_still_false_names_are_rare():
    rng, named = np.random.default_rng(2), 0
    for _ in range(200):
        rates = rng.dirichlet(np.full(6, 0.3), 50)
        base, policy = (rng.multinomial(32, rates).reshape(-1) for _ in range(2))
        n = np.full(base.size, 32)
        named += bool(np.logical_or(*moves(base, policy, n, n)).any())
    assert named / 200 <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5
