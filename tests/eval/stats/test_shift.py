import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import hypergeom

from offleash.eval.stats.shift import exchange_p, shift_p


def test_equals_the_exact_test_of_one_table_but_for_the_normal_approximation():
    hits, others, n = 40, 70, 200
    null = hypergeom(2 * n, hits + others, n)
    exact = 2 * null.cdf(hits)
    assert shift_p([hits], [others], [n], [n]) == pytest.approx(exact, rel=0.1)


def test_is_uniform_or_more_cautious_if_nothing_changed():
    rng = np.random.default_rng(0)
    rates = rng.beta(0.5, 1, 30)
    ps = [shift_p(rng.binomial(16, rates), rng.binomial(16, rates), [16] * 30, [16] * 30) for _ in range(2000)]
    for level in (0.5, 0.05, 0.01):
        assert np.mean(np.array(ps) <= level) <= level + 3 * math.sqrt(level / 2000)


def test_finds_a_shift_that_every_problem_shares():
    rng = np.random.default_rng(0)
    n_p = np.full(40, 64)
    assert shift_p(rng.binomial(64, 0.3, 40), rng.binomial(64, 0.4, 40), n_p, n_p) < 1e-6


def test_says_nothing_where_all_draws_agree():
    assert math.isnan(shift_p([0, 8], [0, 8], [8, 8], [8, 8]))


def test_an_exchange_is_bounded_by_the_test_over_all_signs_and_finds_a_shift():
    rng = np.random.default_rng(0)
    for _ in range(20):
        difference = rng.normal(0.3, 1, 9)
        sums = [abs(np.dot(signs, difference)) for signs in product((-1, 1), repeat=9)]
        exact = np.mean(np.array(sums) >= abs(difference.sum()) - 1e-12)
        assert exact <= exchange_p(difference) + 1e-12
    assert exchange_p(np.full(40, 0.2)) < 1e-6
    assert exchange_p([0.5, -0.5]) == 1
    assert math.isnan(exchange_p([0.0, 0.0]))
