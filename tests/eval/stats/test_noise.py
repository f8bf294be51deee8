"""Sampling noise: exact against brute force, calibrated when nothing changed, powerful when something did."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.noise import Excess, NoiseTest, _null_pmf, noise_test, tail
from offleash.eval.stats.subsets import expected_cells

KS_1_IN_10000 = 2.23  # sup-distance x sqrt(trials) exceeded once in ten thousand


def uniformity(p: list[float]) -> float:
    """Kolmogorov-Smirnov distance to the uniform distribution, times sqrt(n)."""
    ordered = np.sort(p)
    n = ordered.size
    steps = np.arange(n + 1) / n
    return float(max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1])) * math.sqrt(n))


def randomized_p(excess: Excess, rng: np.random.Generator) -> float:
    return randomized(int(excess.observed), excess.pmf, rng)


def randomized(count: int, pmf: np.ndarray, rng: np.random.Generator) -> float:
    """Exactly uniform if nothing had changed: the tie at the observed count is broken at random."""
    return float(pmf[count + 1 :].sum() + rng.random() * pmf[count : count + 1].sum())


def null_mean(excess: Excess) -> float:
    return float(np.arange(excess.pmf.size) @ excess.pmf)


def brute_force(totals: list[int], n_base: int, n_policy: int, threshold: int) -> np.ndarray:
    """Distribution of Shrunk units of one problem over every way to deal its samples to the two pools."""
    labels = [u for u, t in enumerate(totals) for _ in range(t)]
    labels += [-1] * (n_base + n_policy - len(labels))
    found: Counter[int] = Counter()
    for dealt in itertools.combinations(range(len(labels)), n_base):
        base = Counter(labels[i] for i in dealt)
        found[sum(base[u] >= threshold and t - base[u] < threshold for u, t in enumerate(totals))] += 1
    ways = math.comb(n_base + n_policy, n_base)
    return np.array([found[i] / ways for i in range(len(totals) + 1)])


@pytest.mark.parametrize(
    ("hits", "printed"),
    [(1, ".500"), (2, ".2495"), (3, ".1243"), (4, ".0618"), (5, ".0306"), (6, ".0152"), (7, ".0075"), (10, ".00089")],
)
def test_one_unit_matches_the_published_values_at_256(hits: int, printed: str) -> None:
    shrunk, expanded = (null_mean(excess) for excess in noise_test([hits], [0], 256, 256))
    assert abs(shrunk - float(printed)) <= 0.5 * 10 ** -(len(printed) - 1)
    assert shrunk == pytest.approx(math.comb(256, hits) / math.comb(512, hits), rel=1e-12)
    assert expanded == pytest.approx(shrunk, rel=1e-12)


@pytest.mark.parametrize("threshold", [1, 2, 5])
@pytest.mark.parametrize(("n_base", "n_policy"), [(12, 12), (12, 5), (3, 9), (8192, 2048)])
def test_one_unit_is_an_exact_hypergeometric_sum(threshold: int, n_base: int, n_policy: int) -> None:
    for total in range(13):
        ways = {x: math.comb(n_base, x) * math.comb(n_policy, total - x) for x in range(total + 1)}
        if sum(ways.values()) == 0 or total > n_base + n_policy:
            continue
        base = min(total, n_base)
        test = noise_test([base], [total - base], n_base, n_policy, threshold=threshold)
        exact = [
            sum(w for x, w in ways.items() if x >= threshold and total - x < threshold) / sum(ways.values()),
            sum(w for x, w in ways.items() if x < threshold and total - x >= threshold) / sum(ways.values()),
        ]
        assert [null_mean(excess) for excess in test] == pytest.approx(exact, rel=1e-11, abs=1e-18)


def test_units_hit_often_or_never_are_not_noise() -> None:
    test = noise_test([0, 8192, 100], [0, 8192, 100], 8192, 8192)
    assert max(null_mean(excess) for excess in test) < 1e-60
    assert test.shrunk.expected < 1e-3  # the predictive of a rate of .012 or more


@pytest.mark.parametrize("threshold", [1, 2])
@pytest.mark.parametrize("totals", [[1, 1], [3, 2, 1], [4, 4], [2, 2, 2, 2], [7, 6]])
def test_units_of_one_problem_have_the_exact_joint_distribution(totals: list[int], threshold: int) -> None:
    n_base, n_policy = 8, 6
    exact = brute_force(totals, n_base, n_policy, threshold)
    base = np.diff(np.minimum(np.cumsum([0, *totals]), n_base)).tolist()
    policy = [t - b for t, b in zip(totals, base, strict=True)]
    result = noise_test(base, policy, n_base, n_policy, [0] * len(totals), threshold).shrunk
    pmf = np.zeros(exact.size)
    pmf[: result.pmf.size] = result.pmf
    assert np.allclose(pmf, exact, rtol=0, atol=1e-13)
    alone = (noise_test([b], [p], n_base, n_policy, threshold=threshold) for b, p in zip(base, policy, strict=True))
    assert null_mean(result) == pytest.approx(sum(null_mean(test.shrunk) for test in alone), abs=1e-13)


def test_treating_units_of_one_problem_as_independent_would_be_wrong() -> None:
    # All eight samples are on two answers with four hits each: both cannot fall into a base pool of four.
    together = noise_test([4, 0], [0, 4], 4, 4, [0, 0]).shrunk
    apart = noise_test([4, 0], [0, 4], 4, 4, [0, 1]).shrunk
    assert together.pmf[2:].sum() == 0.0
    assert apart.pmf[2] > 0
    assert null_mean(together) == pytest.approx(null_mean(apart))


def test_units_apart_convolve_over_problems() -> None:
    result = noise_test([1, 2, 3], [0, 0, 0], 4, 4)
    chances = [math.comb(4, t) / math.comb(8, t) for t in (1, 2, 3)]
    exact = np.ones(1)
    for chance in chances:
        exact = np.convolve(exact, [1 - chance, chance])
    assert np.allclose(result.shrunk.pmf, exact, atol=1e-15)
    assert result.shrunk.p == pytest.approx(math.prod(chances))
    assert null_mean(result.shrunk) == pytest.approx(sum(chances))
    assert result.expanded.p == 1.0


def test_the_order_of_units_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    problem = np.repeat(np.arange(20), 4)
    base, policy = rng.binomial(3, 0.4, 80), rng.binomial(3, 0.4, 80)
    order = rng.permutation(80)
    one = noise_test(base, policy, 32, 48, problem)
    two = noise_test(base[order], policy[order], 32, 48, problem[order])
    assert one.shrunk.p == pytest.approx(two.shrunk.p, rel=1e-12)
    assert one.expanded.expected == pytest.approx(two.expanded.expected, rel=1e-12)


def test_p_values_of_a_distribution() -> None:
    assert tail(1, np.array([0.5, 0.3, 0.2])) == pytest.approx(0.5)
    assert tail(7, np.array([0.5, 0.5])) == 0.0
    assert tail(0, np.ones(1)) == 1.0


def drawn(rate_pa: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Hits per problem and unit; the last answer of each problem is the rest of the probability, and no unit."""
    return np.array([rng.multinomial(n, row) for row in rate_pa])[:, :-1]


def rates(problems: int, units: int, rng: np.random.Generator) -> np.ndarray:
    """Rates from common to rare: 10^-0.5 to 10^-3.5 of a problem's samples, shared among its units."""
    correct = 10 ** rng.uniform(-3.5, -0.5, size=(problems, units)) / units
    return np.hstack([correct, 1 - correct.sum(axis=1, keepdims=True)])


@pytest.mark.parametrize(
    ("units", "n_base", "n_policy", "threshold"), [(1, 64, 64, 1), (6, 64, 64, 1), (3, 128, 48, 1), (4, 128, 128, 5)]
)
def test_p_is_uniform_and_expectations_hold_when_nothing_changed(
    units: int, n_base: int, n_policy: int, threshold: int
) -> None:
    rng = np.random.default_rng(10 + units)
    problems, trials = 30, 120
    rate_pa = rates(problems, units, rng)
    problem_u = np.repeat(np.arange(problems), units)
    results: list[NoiseTest] = []
    for _ in range(trials):
        base, policy = drawn(rate_pa, n_base, rng).ravel(), drawn(rate_pa, n_policy, rng).ravel()
        results.append(noise_test(base, policy, n_base, n_policy, problem_u, threshold))
    for side in (0, 1):
        tests = [result[side] for result in results]
        assert uniformity([randomized_p(test, rng) for test in tests]) < KS_1_IN_10000
        excess = np.array([test.observed - null_mean(test) for test in tests])
        assert abs(excess.mean()) < 4 * excess.std() / math.sqrt(trials)
        for name in ("p", "p_strength"):
            assert np.mean([getattr(test, name) <= 0.05 for test in tests]) <= 0.05 + 4 * math.sqrt(
                0.05 * 0.95 / trials
            )
        assert np.mean([test.sure_u.any() for test in tests]) <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / trials)
        mid_p = [test.p - test.pmf[test.observed] / 2 for test in tests]
        assert 0.4 < np.mean(mid_p) < 0.6


def test_ignoring_that_answers_compete_would_break_the_calibration() -> None:
    # Two draws, three answers, every sample on one of them: what one answer takes the others lack.
    rng = np.random.default_rng(3)
    rate_pa = np.tile([1 / 3, 1 / 3, 1 / 3, 0.0], (5, 1))
    problem_u = np.repeat(np.arange(5), 3)
    right, wrong = [], []
    for _ in range(400):
        base, policy = drawn(rate_pa, 2, rng).ravel(), drawn(rate_pa, 2, rng).ravel()
        two, count = np.full(15, 2), int(np.sum((base > 0) & (policy == 0)))
        for found, problems in ((right, problem_u), (wrong, np.arange(15))):
            found.append(randomized(count, _null_pmf(base + policy, two, two, problems, 1), rng))
    # (p - 1/2)^2 of a uniform p has mean 1/12 and variance 1/180.
    right_z, wrong_z = ((np.mean((np.array(p) - 0.5) ** 2) - 1 / 12) / math.sqrt(1 / 180 / 400) for p in (right, wrong))
    assert abs(right_z) < 4
    assert abs(wrong_z) > 6


def test_planted_shrinkage_is_found_and_is_not_called_expansion() -> None:
    rng = np.random.default_rng(4)
    tests = []
    for _ in range(40):
        base_rates = rates(150, 1, rng)
        policy_rates = base_rates.copy()
        lost = rng.random(150) < 0.15
        policy_rates[lost] = [0.0, 1.0]
        base, policy = drawn(base_rates, 256, rng).ravel(), drawn(policy_rates, 256, rng).ravel()
        tests.append(noise_test(base, policy, 256, 256))
    assert np.mean([test.shrunk.p < 0.01 for test in tests]) >= 0.9
    assert np.mean([test.expanded.p < 0.05 for test in tests]) <= 0.05
    assert np.mean([test.shrunk.excess for test in tests]) > 5


def test_two_units_held_firmly_are_found_where_the_count_says_nothing() -> None:
    rng = np.random.default_rng(4)
    rate = rng.beta(0.4, 1.0, 40)
    base, policy = rng.binomial(100, rate), rng.binomial(100, rate)
    base[:2], policy[:2] = [60, 22], 0
    lost = noise_test(base, policy, 100, 100).shrunk
    assert lost.p > 0.3
    assert lost.p_strength == pytest.approx(1 / 2000)
    assert np.flatnonzero(lost.sure_u).tolist() == [0, 1]


def test_at_k_the_statistic_is_the_expected_table_and_its_p_is_calibrated() -> None:
    rng = np.random.default_rng(6)
    rate_pa = rates(20, 2, rng)
    problem_u = np.repeat(np.arange(20), 2)
    ps = []
    for _ in range(100):
        base, policy = drawn(rate_pa, 96, rng).ravel(), drawn(rate_pa, 32, rng).ravel()
        test = noise_test(base, policy, 96, 32, problem_u, k=16)
        ps.append(test.shrunk.p)
    cells = expected_cells(base, policy, 96, 32, 16).sum(axis=0)
    assert (test.shrunk.observed, test.expanded.observed) == pytest.approx(tuple(cells[1:3]))
    assert uniformity(ps) < KS_1_IN_10000
    planted = noise_test(base, np.where(problem_u < 8, 0, policy), 96, 32, problem_u, k=16)
    assert planted.shrunk.p < 0.01


def test_at_k_equal_to_n_the_statistic_is_the_count_itself() -> None:
    base, policy = [1, 9, 0, 2, 0, 31], [0, 7, 3, 0, 0, 30]
    plain, at_k = noise_test(base, policy, 64, 64), noise_test(base, policy, 64, 64, k=64)
    for one, other in zip(plain, at_k, strict=True):
        assert (one.observed, one.expected) == pytest.approx((other.observed, other.expected))
        assert other.p == pytest.approx(one.p, abs=4 * math.sqrt(one.p * (1 - one.p) / 2000) + 1e-3)


def test_the_expectation_does_not_depend_on_the_policy() -> None:
    base = np.array([0, 0, 1, 1, 2, 3, 8, 20, 40, 63])
    same, moved = (noise_test(base, policy, 64, 64) for policy in (base, np.where(base > 1, base // 2, 0)))
    assert same.shrunk.expected == moved.shrunk.expected
    assert same.expanded.expected == moved.expanded.expected


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (([3], [0], 2, 2), "base hits"),
        (([0], [3], 2, 2), "policy hits"),
        (([8, 8], [0, 0], 10, 10, [0, 0]), "16 hits"),
        (([0, 0], [8, 8], 10, 10, [0, 0]), "16 hits"),
        (([1, 2], [1], 4, 4), "same units"),
        (([-1], [0], 2, 2), "base hits"),
        (([0.5], [0], 2, 2), "base hits"),
        (([0], [math.nan], 2, 2), "policy hits"),
        (([0], [math.inf], 2, 2), "policy hits"),
        (([0], [0], 0, 2), "base draws"),
        (([0], [0], 2, 2.5), "policy draws"),
        (([0], [0], 2, math.nan), "policy draws"),
        (([1, 1], [1, 1], [4, 5], 4, [0, 0]), "base draws"),
        (([1], [1], 4, 4, [math.nan]), "problem_u"),
        (([1], [1], 4, 4, None, 0), "threshold"),
        (([1], [1], 4, 4, None, 1.5), "threshold"),
    ],
)
def test_impossible_input_is_refused_by_name(arguments: tuple[Any, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        noise_test(*arguments)


@pytest.mark.parametrize("k", [0, 5, 1.5, math.nan])
def test_an_impossible_k_is_refused(k: float) -> None:
    with pytest.raises(ConfigError, match="k"):
        noise_test([1], [1], 4, 4, k=k)


def test_at_one_draw_the_expectation_is_not_informative_and_says_so() -> None:
    test = noise_test([1, 0, 1], [0, 0, 1], 1, 1)
    assert math.isnan(test.shrunk.expected)
    assert math.isnan(test.shrunk.excess)
    assert test.shrunk.p == 0.5


def test_no_units_have_no_noise() -> None:
    assert [excess.expected for excess in noise_test([], [], 4, 4)] == [0.0, 0.0]
    assert noise_test([], [], 4, 4).shrunk.p == 1.0
