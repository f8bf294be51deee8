"""Support from exact probabilities: the table at a floor, problems as sums, and what k draws show on average."""

import math

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.exact_support import (
    EPSILONS,
    conditional_entropy,
    exact_dynamics,
    exact_pass_at_k,
    exact_support,
    hit_by,
)
from offleash.eval.stats.support import Dynamics, cells_of

PROBLEM = [0, 0, 0, 7]
BASE = [0.3, 1e-3, 0.0, 1e-8]
POLICY = [0.5, 9e-4, 2e-3, 1e-8]


def test_a_unit_is_in_support_from_the_floor_on() -> None:
    assert exact_dynamics(BASE, POLICY, 1e-3) == Dynamics(preserved=1, shrunk=1, expanded=1, out=1)
    assert exact_dynamics(BASE, POLICY, 1e-8) == Dynamics(preserved=3, shrunk=0, expanded=1, out=0)


def test_a_problem_has_the_sum_of_its_units() -> None:
    found = exact_support(BASE, POLICY, PROBLEM, ks=[1, 2])
    assert list(found.units) == list(found.problems) == list(EPSILONS)
    assert found.units[1e-3].nscr == 0
    assert found.problems[1e-1] == Dynamics(preserved=1, shrunk=0, expanded=0, out=1)
    p = 0.5029
    assert found.pass_at_k == pytest.approx({1: (p + 1e-8) / 2, 2: (1 - (1 - p) ** 2 + 2e-8 - 1e-16) / 2})


def test_entropy_is_of_the_answer_given_that_it_is_correct() -> None:
    assert conditional_entropy([0.1, 0.1, 0.0, 0.2], [0, 0, 0, 1]) == pytest.approx(math.log(2) / 2)
    assert conditional_entropy([0.1, 0.1, 0.0], [0, 0, 1]) == pytest.approx(math.log(2))  # nothing solves the second
    assert math.isnan(conditional_entropy([0.0, 0.0], [0, 1]))


def test_k_draws_show_what_simulated_draws_show() -> None:
    rng = np.random.default_rng(0)
    base, policy, k = np.array([0.02, 0.2, 0.001]), np.array([0.1, 0.01, 0.05]), 16
    hits = [rng.binomial(k, side, (40_000, 3)) > 0 for side in (base, policy)]
    drawn = np.stack([(hits[0] == a) & (hits[1] == b) for a, b in ((1, 1), (1, 0), (0, 1), (0, 0))], axis=2)
    assert cells_of(hit_by(base, k), hit_by(policy, k)) == pytest.approx(drawn.mean(axis=0), abs=0.01)


def test_small_and_certain_probabilities_keep_their_digits() -> None:
    assert hit_by([1e-30, 1.0, 0.0], 8192).tolist() == pytest.approx([8.192e-27, 1.0, 0.0], rel=1e-12)
    assert exact_pass_at_k([0.5, 0.0], [1, 3]).tolist() == [0.25, 0.4375]


@pytest.mark.parametrize("wrong", [[-0.1, 0.2], [math.nan, 0.2], [0.7, 0.7], [[0.1, 0.2]]])
def test_what_is_no_probability_is_refused(wrong: list) -> None:
    with pytest.raises(ConfigError, match="policy probabilities"):
        exact_support([0.1, 0.2], wrong, [0, 0])


def test_units_and_a_floor_are_needed() -> None:
    with pytest.raises(ConfigError, match="base probabilities"):
        exact_support([], [], [])
    with pytest.raises(ConfigError, match="eps"):
        exact_dynamics([0.1], [0.1], 0.0)
