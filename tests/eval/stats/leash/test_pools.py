"""The leash line from samples: against exact probabilities, how often reweighting is called an expansion, and power.

Larger tables of the same kind: `bench/calibration.py --table leash`.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.exact_support import exact_pass_at_k, hit_by, sums
from offleash.eval.stats.leash.pools import _at_most, pool_against_line, pool_line
from offleash.eval.stats.leash.tilt import tilt, weight_at
from offleash.eval.stats.leash.verdict import verdict
from offleash.eval.stats.subsets import in_support
from offleash.eval.stats.support import cells_of, metrics

PROBLEMS, ANSWERS = 60, 4
PROBLEM_U = np.repeat(np.arange(PROBLEMS), ANSWERS)
Lab = Callable[[np.random.Generator], np.ndarray]


def spread(rng: np.random.Generator) -> np.ndarray:
    """Rates over five orders of magnitude."""
    return rng.dirichlet([*[0.3] * ANSWERS, 1.5], PROBLEMS)[:, :ANSWERS] * 10 ** -rng.uniform(0, 3, (PROBLEMS, ANSWERS))


def gap(rng: np.random.Generator) -> np.ndarray:
    """Half of the answers are likely, half all but impossible."""
    likely = rng.random((PROBLEMS, ANSWERS)) < 0.5
    return np.where(likely, rng.uniform(0.03, 0.2, likely.shape), 10 ** -rng.uniform(4, 8, likely.shape))


def smooth(rng: np.random.Generator) -> np.ndarray:
    """One Beta for all."""
    rates = rng.beta(0.2, 3, (PROBLEMS, ANSWERS))
    return rates / np.maximum(1, 1.02 * rates.sum(axis=1, keepdims=True))


def drawn(rate_u: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    rows = rate_u.reshape(PROBLEMS, ANSWERS)
    return rng.multinomial(n, np.c_[rows, np.maximum(0, 1 - rows.sum(axis=1))])[:, :ANSWERS].ravel()


@pytest.mark.parametrize("lab", [spread, gap, smooth])
def test_with_many_samples_the_line_is_the_exact_one(lab: Lab) -> None:
    rng = np.random.default_rng(0)
    base_u, n, k = lab(rng).ravel(), 100_000, 64
    exact_u = tilt(base_u, PROBLEM_U, math.log(8))
    hits = drawn(base_u, n, rng)
    line = pool_line(hits, n, PROBLEM_U, float(sums(exact_u, PROBLEM_U).mean()), k_u=k, ks=[1, 8, 512])
    truth_4 = cells_of(in_support(hits, n, k), hit_by(exact_u, k)).sum(axis=0)
    assert line.cells == pytest.approx(truth_4, abs=0.5)
    assert line.nscr == pytest.approx(float(metrics(truth_4)["nscr"]), abs=0.005)
    assert line.log_weight == pytest.approx(math.log(8), abs=0.02)
    assert list(line.pass_at_k) == [1, 8, 512]
    assert list(line.pass_at_k.values()) == pytest.approx(
        exact_pass_at_k(sums(exact_u, PROBLEM_U), [1, 8, 512]).tolist(), abs=0.005
    )


@pytest.mark.parametrize("lab", [spread, gap, smooth])
@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_the_line_has_little_bias(lab: Lab, weight: float) -> None:
    rng, errors = np.random.default_rng(1), []
    for _ in range(40):
        base_u = lab(rng).ravel()
        exact_u = tilt(base_u, PROBLEM_U, math.log(weight))
        hits = drawn(base_u, 128, rng)
        line = pool_line(hits, 128, PROBLEM_U, float(sums(exact_u, PROBLEM_U).mean()), k_u=64)
        errors.append(line.nscr - metrics(cells_of(in_support(hits, 128, 64), hit_by(exact_u, 64)).sum(axis=0))["nscr"])
    assert abs(np.mean(errors)) < 0.02


@pytest.mark.parametrize("lab", [spread, gap, smooth])
@pytest.mark.parametrize(("n_base", "weight"), [(64, 8.0), (256, 2.0)])
def test_samples_of_the_reweighting_itself_are_hardly_ever_said_to_expand(lab: Lab, n_base: int, weight: float) -> None:
    rng, words, held = np.random.default_rng(2), [], []
    for _ in range(60):
        base_u = lab(rng).ravel()
        hits = drawn(base_u, n_base, rng)
        policy = drawn(tilt(base_u, PROBLEM_U, math.log(weight)), 64, rng)
        _, found = pool_against_line(hits, policy, n_base, 64, PROBLEM_U, rng=rng, resamples=60)
        words.append(verdict(found))
        held.append(found.above.low <= 0 <= found.above.high)
    assert words.count("expands") <= 4  # nominal: 1.5 of 60
    assert np.mean(held) > 0.85


def test_units_that_no_reweighting_reaches_are_found() -> None:
    rng, words = np.random.default_rng(3), []
    for _ in range(20):
        base_u = smooth(rng).ravel()
        base_u[::ANSWERS] = 0.0
        policy_u = 0.9 * tilt(base_u, PROBLEM_U, math.log(2))
        policy_u[:: 2 * ANSWERS] = 0.08  # in every second problem
        hits, policy = drawn(base_u, 256, rng), drawn(policy_u, 64, rng)
        _, found = pool_against_line(hits, policy, 256, 64, PROBLEM_U, rng=rng, resamples=100)
        words.append(verdict(found))
    assert words.count("expands") >= 18


def test_a_policy_that_keeps_one_answer_per_problem_shrinks() -> None:
    rng = np.random.default_rng(4)
    base_u = smooth(rng).ravel()
    policy_u = np.zeros(base_u.size)
    policy_u[base_u.reshape(PROBLEMS, -1).argmax(axis=1) + ANSWERS * np.arange(PROBLEMS)] = 0.7
    _, found = pool_against_line(drawn(base_u, 64, rng), drawn(policy_u, 64, rng), 64, 64, PROBLEM_U, rng=rng)
    assert found.line.value > found.nscr.value
    assert verdict(found) == "shrinks"


def test_units_that_were_never_hit_are_at_most_what_those_hit_once_allow() -> None:
    hits, n, k = np.array([0] * 90 + [1] * 10), np.full(100, 50), np.full(100, 20)
    line_bu, grown_bu, weight_bu = np.zeros((1, 100)), np.full((1, 100), 3.0), np.ones((1, 100))

    class NothingWithheld:
        def standard_exponential(self, shape: tuple[int, ...]) -> np.ndarray:
            return np.zeros(shape)

    most = _at_most(line_bu, grown_bu, weight_bu, hits, n, k, NothingWithheld())  # type: ignore[arg-type]
    rate = 10 * 3 / 50 / 90
    assert most[0, :90] == pytest.approx(np.full(90, 1 - (1 - rate) ** 20))
    assert most[0, 90:].tolist() == [0.0] * 10
    # Rates that are not equal, with the same sum, are hit less.
    uneven = np.r_[np.full(45, rate / 2), np.full(45, 1.5 * rate)]
    assert hit_by(uneven, 20).sum() < most[0].sum()


def test_hits_that_cannot_be_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError, match="base hits"):
        pool_line([5, 4], 8, [0, 0], 0.5)
    with pytest.raises(ConfigError, match="policy hits"):
        pool_against_line([1, 0], [9, 0], 8, 8, [0, 1], rng=rng)


@pytest.mark.parametrize("part", [0.5, 0.45])
def test_below_a_base_that_nearly_always_solves_the_line_is_still_the_exact_one(part: float) -> None:
    # Rates drawn one by one sum to 1 and more here, and nothing lowers a problem that is always solved.
    rate_u = np.tile([0.6, 0.3, 0.05, 0.01], PROBLEMS)
    exact_u = tilt(rate_u, PROBLEM_U, weight_at(rate_u, PROBLEM_U, part * 0.96))
    held = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        hits, policy = drawn(rate_u, 64, rng), drawn(part * rate_u, 64, rng)
        truth = float(metrics(cells_of(hits > 0, hit_by(exact_u, 64)).sum(axis=0))["nscr"])
        line, found = pool_against_line(hits, policy, 64, 64, PROBLEM_U, rng=rng, resamples=200)
        assert line.nscr == pytest.approx(truth, abs=0.05)
        held += found.line.low <= truth <= found.line.high
    assert held >= 5


def test_where_the_base_has_hit_every_unit_nothing_is_reached_however_few_draws_are_compared() -> None:
    rng = np.random.default_rng(0)
    rate_u = np.tile([0.3, 0.03, 0.03, 0.03], PROBLEMS)
    hits = np.maximum(drawn(rate_u, 512, rng), 1)
    policy = drawn(np.full(rate_u.size, 0.2), 64, rng)
    _, found = pool_against_line(hits, policy, 512, 64, PROBLEM_U, rng=rng, resamples=100)
    assert found.reached == 0
    assert found.nscr.value > 0
    assert verdict(found, 0.01) != "expands"
