"""Support at k < n: against every subset of small pools, and against the plain table at k = n."""

from itertools import combinations, product

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.passk import pass_at_k
from offleash.eval.stats.subsets import expected_cells, in_support
from offleash.eval.stats.support import bootstrap_dynamics, dynamics, metrics


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


def nscr_at_64(n: int, rate_u: np.ndarray, kept_u: np.ndarray, rng: np.random.Generator) -> float:
    base, policy = rng.binomial(n, rate_u), rng.binomial(n, rate_u * kept_u)
    return float(metrics(expected_cells(base, policy, n, n, 64).sum(axis=0))["nscr"])


def test_more_samples_make_support_at_the_same_k_less_noisy_and_not_biased() -> None:
    rng = np.random.default_rng(0)
    rate_u = rng.beta(0.3, 3.0, 300)
    kept_u = np.where(rng.random(300) < 0.2, 0.1, 1.0)
    drawn = {n: [nscr_at_64(n, rate_u, kept_u, rng) for _ in range(60)] for n in (64, 256, 1024)}
    spread = [float(np.std(values)) for values in drawn.values()]
    assert spread[0] > 1.5 * spread[1] > 1.5**2 * spread[2], spread
    in_base, in_policy = 1 - (1 - rate_u) ** 64, 1 - (1 - rate_u * kept_u) ** 64
    cells = [in_base * in_policy, in_base * (1 - in_policy), (1 - in_base) * in_policy, 0 * in_base]
    truth = float(metrics(np.sum(cells, axis=1))["nscr"])
    for values, sd in zip(drawn.values(), spread, strict=True):
        assert np.mean(values) == pytest.approx(truth, abs=4 * sd / 60**0.5 + 0.002)


@pytest.mark.parametrize("threshold", [1, 5])
def test_intervals_of_expected_tables_cover_as_often_as_they_say(threshold: int) -> None:
    rng = np.random.default_rng(2)
    k, n_base, n_policy, problems = 16, 128, 16, 60

    def rates(size: int) -> tuple[np.ndarray, np.ndarray]:
        rate = rng.beta(0.4, 2.0, size)
        return rate, np.where(rng.random(size) < 0.15, 0.0, np.minimum(1.0, 1.2 * rate))

    from scipy.stats import binom

    in_base, in_policy = (binom.sf(threshold - 1, k, rate) for rate in rates(300_000))
    cells = [in_base * in_policy, in_base * (1 - in_policy), (1 - in_base) * in_policy, (1 - in_base) * (1 - in_policy)]
    truth = {name: float(value) for name, value in metrics(np.mean(cells, axis=1)).items()}
    trials, covered = 300, dict.fromkeys(truth, 0)
    for _ in range(trials):
        base, policy = rates(problems)
        drawn = rng.binomial(n_base, base), rng.binomial(n_policy, policy)
        estimates = bootstrap_dynamics(expected_cells(*drawn, n_base, n_policy, k, threshold), rng=rng, resamples=400)
        for name, value in truth.items():
            covered[name] += estimates[name].low <= value <= estimates[name].high
    assert all(count / trials >= 0.91 for count in covered.values()), covered
