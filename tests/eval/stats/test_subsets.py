"""Support at k < n: against every subset of small pools, and against the plain table at k = n."""

from itertools import combinations, product

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.passk import pass_at_k
from offleash.eval.stats.subsets import expected_cells, in_support
from offleash.eval.stats.support import dynamics


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_in_support_is_the_fraction_of_subsets_that_hold_enough_hits(n: int) -> None:
    for hits, k, threshold in product(range(n + 1), range(1, n + 1), (1, 2, 5)):
        subsets = list(combinations([1] * hits + [0] * (n - hits), k))
        expected = np.mean([sum(subset) >= threshold for subset in subsets])
        assert in_support(hits, n, k, threshold) == pytest.approx(expected, abs=1e-12)


def test_one_hit_is_the_unbiased_pass_at_k() -> None:
    hits = np.arange(0, 1025, 31)
    for k in (1, 64, 1000, 1024):
        assert in_support(hits, 1024, k) == pytest.approx(pass_at_k(hits, 1024, [k])[:, 0], abs=1e-11)


def test_at_k_equal_to_n_the_expected_table_is_the_table_to_the_last_digit() -> None:
    rng = np.random.default_rng(0)
    base, policy = rng.integers(0, 65, 300), rng.binomial(64, 0.03, 300)
    for threshold in (1, 5):
        table = dynamics(base, policy, threshold)
        cells = expected_cells(base, policy, 64, 64, 64, threshold).sum(axis=0)
        assert cells.tolist() == [table.preserved, table.shrunk, table.expanded, table.out]


def test_the_expected_table_is_the_mean_table_over_all_pairs_of_subsets() -> None:
    base, policy, k = [1, 1, 0, 0, 0], [1, 0, 0, 0], 2
    tables = [
        dynamics([sum(one)], [sum(other)]) for one, other in product(combinations(base, k), combinations(policy, k))
    ]
    expected = [np.mean([getattr(t, name) for t in tables]) for name in ("preserved", "shrunk", "expanded", "out")]
    assert expected_cells([2], [1], 5, 4, k)[0] == pytest.approx(expected, abs=1e-12)


def test_a_budget_above_the_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match="k <= n"):
        in_support([1], [4], [5])
    with pytest.raises(ConfigError, match="hits"):
        in_support([5], [4], [4])
