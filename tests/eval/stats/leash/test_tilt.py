"""The KL-optimal reweighting of the base: the whole outcome space, closed forms, extremes, properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offleash.eval.stats.exact_support import EPSILONS, conditional_entropy, exact_support
from offleash.eval.stats.leash.tilt import leash_line, tilt, weight_at

Outcomes = list[np.ndarray]


def outcome_spaces(rng: np.random.Generator, problems: int) -> tuple[Outcomes, list[np.ndarray]]:
    """Distributions over all outcomes of each problem, and which of them are correct."""
    sizes = rng.integers(3, 9, problems)
    return [rng.dirichlet(np.full(size, 0.4)) for size in sizes], [
        np.arange(size) < rng.integers(1, size) for size in sizes
    ]


def units_of(spaces: Outcomes, correct: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    units = [space[right] for space, right in zip(spaces, correct, strict=True)]
    return np.concatenate(units), np.repeat(np.arange(len(units)), [len(part) for part in units])


def pass_at_1(spaces: Outcomes, correct: list[np.ndarray]) -> float:
    return float(np.mean([space[right].sum() for space, right in zip(spaces, correct, strict=True)]))


def mean_kl(spaces: Outcomes, base: Outcomes) -> float:
    return float(np.mean([np.sum(one * np.log(one / other)) for one, other in zip(spaces, base, strict=True)]))


def tilted_spaces(base: Outcomes, correct: list[np.ndarray], log_weight: float) -> Outcomes:
    """q exp(R / beta) / Z, literally."""
    raised = [space * np.exp(log_weight * right) for space, right in zip(base, correct, strict=True)]
    return [space / space.sum() for space in raised]


@pytest.mark.parametrize("target", [0.2, 0.6, 0.95])
def test_units_are_those_of_the_tilt_of_the_whole_outcome_space(target: float) -> None:
    base, correct = outcome_spaces(np.random.default_rng(1), 12)
    base_u, problem_u = units_of(base, correct)
    line = leash_line(base_u, problem_u, target)
    whole = tilted_spaces(base, correct, line.log_weight)
    assert line.probability_u == pytest.approx(units_of(whole, correct)[0], rel=1e-10)
    assert pass_at_1(whole, correct) == pytest.approx(target, abs=1e-12)
    assert line.support is not None
    assert line.support.pass_at_k[1] == pytest.approx(target, abs=1e-12)


def test_no_policy_with_the_same_pass_at_1_is_nearer_to_the_base() -> None:
    rng = np.random.default_rng(2)
    base, correct = outcome_spaces(rng, 6)
    target = 0.7
    whole = tilted_spaces(base, correct, weight_at(*units_of(base, correct), target))
    least = mean_kl(whole, base)
    for size in np.geomspace(1e-3, 1, 200):
        moved = [space * np.exp(size * rng.normal(size=space.size)) for space in whole]
        moved = [space / space.sum() for space in moved]
        # Back to the same pass@1, by a tilt of what was moved.
        moved = tilted_spaces(moved, correct, weight_at(*units_of(moved, correct), target))
        assert pass_at_1(moved, correct) == pytest.approx(target, abs=1e-9)
        assert mean_kl(moved, base) > least


def test_with_one_problem_the_weight_is_the_odds_ratio() -> None:
    log_weight = weight_at([0.05, 0.05], [3, 3], 0.75)
    assert log_weight == pytest.approx(math.log(3 / (0.1 / 0.9)), rel=1e-12)
    assert tilt([0.05, 0.05], [3, 3], log_weight).tolist() == pytest.approx([0.375, 0.375], rel=1e-12)
    assert leash_line([0.1], [0], 0.1 / (0.1 + 0.9 * math.e**2)).beta == pytest.approx(-0.5)  # below the base


def test_the_bases_own_pass_at_1_gives_the_base() -> None:
    base_u, problem_u = [0.1, 0.01, 0.3], [0, 0, 1]
    line = leash_line(base_u, problem_u, (0.11 + 0.3) / 2)
    assert line.log_weight == pytest.approx(0, abs=1e-12)
    assert line.probability_u == pytest.approx(base_u, rel=1e-12)
    assert all(table.shrunk == table.expanded == 0 for table in line.support.units.values())  # type: ignore[union-attr]
    assert tilt(base_u, problem_u, 0.0).tolist() == base_u
    assert leash_line(base_u, problem_u, 0.205)._replace(log_weight=0.0).beta == math.inf


def test_unsolvable_problems_bound_what_reweighting_reaches() -> None:
    base_u, problem_u = [0.1, 0.2, 0.0], [0, 1, 2]
    assert weight_at(base_u, problem_u, 2 / 3) == math.inf
    assert tilt(base_u, problem_u, math.inf).tolist() == [1.0, 1.0, 0.0]
    beyond = leash_line(base_u, problem_u, 0.7)
    assert math.isnan(beyond.log_weight)
    assert np.isnan(beyond.probability_u).all()
    assert beyond.support is None
    assert math.isnan(weight_at(base_u, problem_u, -0.1))
    assert math.isnan(weight_at(base_u, problem_u, math.nan))
    assert weight_at(base_u, problem_u, 0.0) == -math.inf
    assert tilt(base_u, problem_u, -math.inf).tolist() == [0.0, 0.0, 0.0]
    # A problem that is always solved stays so.
    assert tilt([1.0, 0.5], [0, 1], -math.inf).tolist() == [1.0, 0.0]
    assert math.isnan(weight_at([1.0, 0.5], [0, 1], 0.4))


def test_digits_hold_at_large_weights_and_small_probabilities() -> None:
    weight = 1e12
    base_u = [1e-30, 1e-12, 0.3, 1e-300]
    found = tilt(base_u, [0, 1, 2, 3], math.log(weight))
    assert found == pytest.approx([1e-18, 0.5, 0.3 * weight / (0.7 + 0.3 * weight), 1e-288], rel=1e-9)
    assert weight_at([1e-30], [0], 0.5) == pytest.approx(30 * math.log(10), rel=1e-12)
    assert weight_at([1e-30], [0], 1 - 1e-9) == pytest.approx(30 * math.log(10) + 9 * math.log(10), rel=1e-7)


units = st.lists(st.lists(st.floats(1e-12, 0.99), min_size=1, max_size=4), min_size=1, max_size=5)


@given(units, st.floats(0, 1))
def test_reweighting_towards_correct_answers_never_loses_a_unit(rates: list[list[float]], how_far: float) -> None:
    problem_u = np.repeat(np.arange(len(rates)), [len(part) for part in rates])
    base_u = np.concatenate([np.array(part) / max(1.0, 1.01 * sum(part)) for part in rates])
    mean = float(np.bincount(problem_u, base_u).mean())
    line = leash_line(base_u, problem_u, mean + (0.999 - mean) * how_far)
    assert line.support is not None
    for eps in EPSILONS:
        table = line.support.units[eps]
        assert table.shrunk == 0
        assert not table.nscr < 0
        if np.all(base_u >= eps):
            assert table.nscr == 0  # complete: nothing can be gained
    assert np.all(line.probability_u >= base_u * (1 - 1e-12))
    assert line.support.entropy == pytest.approx(conditional_entropy(base_u, problem_u), abs=1e-9)


@given(units, st.floats(0.01, 0.98), st.floats(0.01, 0.98))
def test_the_weight_grows_with_pass_at_1(rates: list[list[float]], one: float, other: float) -> None:
    problem_u = np.repeat(np.arange(len(rates)), [len(part) for part in rates])
    base_u = np.concatenate([np.array(part) / max(1.0, 1.01 * sum(part)) for part in rates])
    low, high = (weight_at(base_u, problem_u, target) for target in sorted((one, other)))
    assert low <= high
    assert exact_support(base_u, tilt(base_u, problem_u, high), problem_u).pass_at_k[1] == pytest.approx(
        max(one, other)
    )
