"""Adaptive plans: unbiased by enumerating every outcome, equal in classification, calibrated in their noise."""

import itertools
import math
import runpy
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.passk import pass_at_k
from offleash.eval.stats.stopping import stopped_noise_test, stopped_pass_at_k
from offleash.eval.stats.support import dynamics

BENCH = runpy.run_path(str(Path(__file__).parents[3] / "bench" / "plans.py"))
expected_draws, run_plan = BENCH["expected_draws"], BENCH["run_plan"]

PLANS = [(1, 1), (1, 6), (2, 6), (3, 7), (5, 5), (4, 3)]
RATES = [Fraction(0), Fraction(1, 7), Fraction(1, 2), Fraction(9, 10), Fraction(1)]


def outcomes(successes: int, cap: int) -> dict[tuple[int, int], int]:
    """Every stopping point (draws, successes) of the plan and the number of sequences that end there."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    seen = set()
    for sequence in itertools.product((0, 1), repeat=cap):
        for m in range(1, cap + 1):
            if sum(sequence[:m]) == successes or m == cap:
                if sequence[:m] not in seen:
                    seen.add(sequence[:m])
                    found[m, sum(sequence[:m])] += 1
                break
    return found


def chance(point: tuple[int, int], paths: int, rate: Fraction) -> Fraction:
    m, s = point
    return paths * rate**s * (1 - rate) ** (m - s)


@pytest.mark.parametrize(("successes", "cap"), PLANS)
def test_stopped_pass_at_k_is_unbiased_over_every_outcome(successes: int, cap: int) -> None:
    points = outcomes(successes, cap)
    ks = list(range(1, cap + 1))
    m, s = (list(axis) for axis in zip(*points, strict=True))
    estimates = stopped_pass_at_k(m, s, ks, successes=successes, cap=cap)
    for rate in RATES:
        chances = [chance(point, paths, rate) for point, paths in points.items()]
        assert sum(chances) == 1
        for j, k in enumerate(ks):
            # limit_denominator recovers the exact fraction behind each double: its denominator is a small binomial.
            mean = sum(
                p * Fraction(float(e)).limit_denominator(10_000) for p, e in zip(chances, estimates[:, j], strict=True)
            )
            assert mean == 1 - (1 - rate) ** k


@pytest.mark.parametrize(("successes", "cap"), PLANS)
def test_expected_draws_match_every_outcome(successes: int, cap: int) -> None:
    for rate in RATES:
        exact = sum(point[0] * chance(point, paths, rate) for point, paths in outcomes(successes, cap).items())
        assert float(expected_draws(float(rate), successes, cap)) == pytest.approx(float(exact), rel=1e-12)


def test_treating_a_stopped_pool_as_a_fixed_one_would_be_biased() -> None:
    rate, points = Fraction(1, 7), outcomes(2, 6)
    plain = sum(float(chance(point, paths, rate)) * point[1] / point[0] for point, paths in points.items())
    assert plain > float(rate) * 1.1


def test_until_one_success_the_estimate_is_whether_it_came_within_k() -> None:
    estimates = stopped_pass_at_k([1, 3, 8], [1, 1, 0], [1, 2, 3, 8], successes=1, cap=8)
    assert estimates.tolist() == [[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]]


def test_a_problem_that_met_the_cap_has_the_fixed_estimate() -> None:
    ks = [1, 5, 100, 8192]
    stopped = stopped_pass_at_k([8192], [3], ks, successes=5, cap=8192)
    assert np.array_equal(stopped, pass_at_k([3], [8192], ks))


def test_budgets_beyond_the_cap_are_undefined() -> None:
    assert np.isnan(stopped_pass_at_k([4], [1], [8, 9], successes=2, cap=4)).all()


def test_stopped_pass_at_k_is_unbiased_at_large_caps_by_simulation() -> None:
    rng = np.random.default_rng(0)
    cap, trials = 8192, 20_000
    ks = np.array([1, 16, 256, 2048, 8192])
    for rate in (3e-5, 4e-4, 0.02, 0.7):
        for successes in (1, 5):
            stopped = run_plan(np.full(trials, rate), successes, cap, rng)
            estimates = stopped_pass_at_k(*stopped, ks, successes=successes, cap=cap)
            truth = 1 - (1 - rate) ** ks
            # The spread of the estimates is itself unreliable where an outcome is rare; a yes-or-no's bounds it.
            spread = np.where(
                np.minimum(truth, 1 - truth) * trials < 100, np.sqrt(truth * (1 - truth)), estimates.std(axis=0)
            )
            assert np.all(np.abs(estimates.mean(axis=0) - truth) <= 5 * spread / math.sqrt(trials) + 1e-12)
            draws = stopped.draws_p.mean()
            error = 5 * stopped.draws_p.std() / math.sqrt(trials) + 1e-5 * cap
            assert abs(draws - float(expected_draws(rate, successes, cap))) < error


def test_support_is_what_a_fixed_pool_of_the_same_draws_would_say() -> None:
    rng = np.random.default_rng(1)
    cap, successes = 64, 5
    rate = 10 ** rng.uniform(-3, 0, 300)
    flags_pd = rng.random((300, cap)) < rate[:, None]
    fixed = flags_pd.sum(axis=1)
    running = np.cumsum(flags_pd, axis=1)
    stop = np.where(fixed >= successes, np.argmax(running >= successes, axis=1) + 1, cap)
    stopped = running[np.arange(300), stop - 1]
    assert stop.sum() < 0.8 * 300 * cap
    for threshold in (1, 2, 5):
        assert np.array_equal(stopped >= threshold, fixed >= threshold)
        assert dynamics(stopped, fixed, threshold).nscr == 0.0


@pytest.mark.parametrize(("successes", "cap", "threshold"), [(1, 3, 1), (2, 4, 1), (2, 4, 2), (3, 4, 2)])
def test_stopped_noise_is_exact_over_every_pair_of_outcomes(successes: int, cap: int, threshold: int) -> None:
    points = outcomes(successes, cap)
    by_total: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for (one, paths_one), (two, paths_two) in itertools.product(points.items(), repeat=2):
        by_total[one[0] + two[0], one[1] + two[1]].append((one[1], two[1], paths_one * paths_two))
    for (one, _), (two, _) in itertools.product(points.items(), repeat=2):
        ways = by_total[one[0] + two[0], one[1] + two[1]]
        exact = sum(w for b, p, w in ways if b >= threshold > p) / sum(w for _, _, w in ways)
        test = stopped_noise_test(
            ([one[0]], [one[1]]), ([two[0]], [two[1]]), successes=successes, cap=cap, threshold=threshold
        )
        assert test.shrunk.expected == pytest.approx(exact, abs=1e-14)
        assert test.shrunk.observed == (one[1] >= threshold > two[1])


def test_until_one_success_the_noise_test_is_the_sign_test() -> None:
    base, policy = ([3, 5, 2, 8], [1, 1, 1, 0]), ([8, 8, 8, 1], [0, 0, 0, 1])
    test = stopped_noise_test(base, policy, successes=1, cap=8)
    assert (test.shrunk.observed, test.shrunk.expected) == (3, 2.0)
    assert test.shrunk.p == pytest.approx(5 / 16)


def test_stopped_noise_is_calibrated_and_finds_planted_shrinkage() -> None:
    rng = np.random.default_rng(2)
    null, planted = [], []
    for _ in range(150):
        rate = 10 ** rng.uniform(-4, -1, 120)
        base = run_plan(rate, 5, 512, rng)
        null.append(stopped_noise_test(base, run_plan(rate, 5, 512, rng), successes=5, cap=512).shrunk)
        lost = np.where(rng.random(120) < 0.3, 0.0, rate)
        planted.append(stopped_noise_test(base, run_plan(lost, 5, 512, rng), successes=5, cap=512).shrunk.p)
    excess = np.array([test.excess for test in null])
    assert abs(excess.mean()) < 4 * excess.std() / math.sqrt(150)
    assert np.mean([test.p <= 0.1 for test in null]) <= 0.1 + 4 * 0.3 / math.sqrt(150)
    assert np.mean(np.array(planted) < 0.05) > 0.9


def test_points_where_the_plan_cannot_stop_are_refused() -> None:
    for m, s in [(3, 1), (8, 3), (1, 2), (9, 1)]:
        with pytest.raises(ConfigError):
            stopped_pass_at_k([m], [s], [1], successes=2, cap=8)
    with pytest.raises(ConfigError):
        stopped_pass_at_k([8], [0], [0], successes=2, cap=8)
    with pytest.raises(ConfigError):
        stopped_pass_at_k([8], [0], [1], successes=0, cap=8)
    with pytest.raises(ConfigError):
        stopped_noise_test(([8], [0]), ([8], [0]), successes=2, cap=8, threshold=3)
