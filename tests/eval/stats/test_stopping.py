"""Adaptive plans: unbiased by enumerating every outcome, equal in classification, calibrated in their noise."""

import itertools
import math
import runpy
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.special import gammaln

from offleash.eval.errors import ConfigError
from offleash.eval.stats.noise import noise_test
from offleash.eval.stats.passk import pass_at_k
from offleash.eval.stats.stopping import _late_hits, _truncated_product, stopped_noise_test, stopped_pass_at_k
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


def log_choose(top: np.ndarray, bottom: np.ndarray | int) -> np.ndarray:
    return gammaln(top + 1) - gammaln(bottom + 1) - gammaln(top - bottom + 1)


@pytest.mark.parametrize(
    ("successes", "cap", "threshold"),
    [(1, 8, 1), (1, 512, 1), (2, 16, 1), (2, 16, 2), (3, 64, 2), (5, 64, 1), (5, 64, 5), (5, 512, 5), (9, 8, 2)],
)
def test_a_problems_own_p_is_valid_at_every_rate_over_every_pair_of_outcomes(
    successes: int, cap: int, threshold: int
) -> None:
    """P(p <= x) <= x for every x that p can be, summed exactly over all stopping points of both pools."""
    capped = np.arange(min(successes, cap + 1))
    m = np.concatenate([np.arange(successes, cap + 1), np.full(capped.size, cap)])
    s = np.concatenate([np.full(m.size - capped.size, successes), capped])
    log_paths = np.where(s == successes, log_choose(m - 1, successes - 1), log_choose(np.full(s.shape, cap), s))
    held = np.flatnonzero(s >= threshold)
    i, j = (axis.ravel() for axis in np.meshgrid(held, np.flatnonzero(s < threshold)))
    p = _late_hits(m[i], s[i], m[j], s[j], np.ones(i.size, bool))
    order = np.argsort(p)
    last = np.append(np.diff(p[order]) > 0, True)
    for rate in 10 ** np.linspace(-4.5, -0.02, 24):
        log_chance = log_paths + s * math.log(rate) + (m - s) * math.log1p(-rate)
        chance = np.exp(log_chance[i] + log_chance[j])[order]
        assert np.all(np.cumsum(chance)[last] <= p[order][last] * (1 + 1e-9))


def test_a_problem_that_stopped_at_once_and_was_never_solved_again_is_no_chance() -> None:
    lost = stopped_noise_test(([10], [5]), ([8192], [0]), successes=5, cap=8192).shrunk
    assert lost.p_strength == pytest.approx(math.comb(10, 5) / math.comb(8202, 5), rel=1e-9)
    assert lost.p < 1e-14
    assert lost.expected < 1e-6
    assert lost.sure_u.tolist() == [True]


def test_many_problems_that_were_barely_held_add_up_in_the_sign_test() -> None:
    base, policy = ([300] * 12, [1] * 12), ([512] * 12, [0] * 12)
    lost = stopped_noise_test(base, policy, successes=1, cap=512).shrunk
    assert lost.p_strength == 1.0  # none below 1/12 alone
    assert lost.p == pytest.approx(2 * 2.0**-12)
    assert not lost.sure_u.any()


def test_the_truncated_product_is_calibrated_for_uniform_p_values() -> None:
    rng = np.random.default_rng(4)
    for units in (1, 7, 200):
        ps = np.array([_truncated_product(rng.random(units)) for _ in range(2000)])
        for level in (0.01, 0.05, 0.2):
            assert np.mean(ps <= level) == pytest.approx(level, abs=5 * math.sqrt(level / 2000))


@pytest.mark.parametrize(("successes", "cap"), [(1, 64), (5, 64), (5, 4096)])
def test_stopped_noise_is_calibrated_and_finds_planted_shrinkage(successes: int, cap: int) -> None:
    rng = np.random.default_rng(2)
    null, planted = [], []
    for _ in range(100):
        rate = rng.beta(0.3, 2.0, 100)
        plan = {"successes": successes, "cap": cap}
        base = run_plan(rate, successes, cap, rng)
        null.append(stopped_noise_test(base, run_plan(rate, successes, cap, rng), **plan).shrunk)
        lost = np.where(rng.random(100) < 0.2, 0.0, rate)
        planted.append(stopped_noise_test(base, run_plan(lost, successes, cap, rng), **plan).shrunk)
    excess = np.array([test.excess for test in null])
    assert abs(excess.mean()) < 4 * excess.std() / math.sqrt(100) + 0.1 * np.mean([test.expected for test in null])
    for name in ("p", "p_strength"):
        assert np.mean([getattr(test, name) <= 0.1 for test in null]) <= 0.1 + 4 * 0.3 / math.sqrt(100)
    assert np.mean([test.p < 0.05 for test in planted]) > 0.7
    assert np.mean([test.sure_u.any() for test in null]) <= 0.05 + 4 * 0.22 / math.sqrt(100)


def test_a_fixed_plan_is_one_that_never_stops() -> None:
    rng = np.random.default_rng(8)
    rate = rng.beta(0.3, 2.0, 60)
    base, policy = rng.binomial(64, rate), rng.binomial(64, np.where(rng.random(60) < 0.2, 0.0, rate))
    n = np.full(60, 64)
    as_stopped = stopped_noise_test((n, base), (n, policy), successes=65, cap=64)
    as_fixed = noise_test(base, policy, 64, 64)
    for one, other in zip(as_stopped, as_fixed, strict=True):
        assert (one.observed, one.expected) == pytest.approx((other.observed, other.expected))


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
