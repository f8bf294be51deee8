"""Verdict words: the rule on given intervals, and on exact probabilities of policies whose verdict is known."""

import math

import numpy as np
import pytest

from offleash.eval.stats.intervals import Estimate
from offleash.eval.stats.leash.against import AgainstLine, exact_against_line
from offleash.eval.stats.leash.tilt import leash_line
from offleash.eval.stats.leash.verdict import verdict


def around(value: float, error: float) -> Estimate:
    return Estimate(value, value - error, value + error, 100)


def found(nscr: Estimate, above: Estimate, reached: float = 5) -> AgainstLine:
    return AgainstLine(nscr, around(nscr.value - above.value, 0.01), above, reached, 1.0)


@pytest.mark.parametrize(
    ("nscr", "above", "reached", "word"),
    [
        (around(-0.1, 0.05), around(-0.2, 0.05), 5, "shrinks"),
        (around(-0.1, 0.05), around(0.2, 0.05), 5, "shrinks"),  # the line is lower still, below the base's pass@1
        (around(-0.1, 0.15), around(-0.2, 0.05), 5, "undecided"),
        (around(0.0, 0.009), around(-0.2, 0.05), 5, "keeps"),
        (around(0.0, 0.02), around(-0.2, 0.05), 5, "undecided"),
        (around(-0.01, 0.02), around(0.05, 0.02), 5, "as good as reweighting"),  # pass@1 fell, and the line with it
        (around(0.1, 0.02), around(-0.05, 0.02), 5, "keeps"),
        (around(0.1, 0.02), around(0.0, 0.02), 5, "keeps"),  # too little data to say that it is as good
        (around(0.1, 0.02), around(0.0, 0.01), 5, "as good as reweighting"),
        (around(0.1, 0.02), around(0.05, 0.05), 5, "as good as reweighting"),
        (around(0.1, 0.02), around(0.05, 0.04), 5, "expands"),
        (around(0.1, 0.02), around(0.05, 0.04), 0, "as good as reweighting"),  # nothing new was reached
        (around(0.0, math.nan), around(0.05, 0.04), 5, None),
        (around(0.1, 0.02), around(0.05, math.nan), 5, None),
        (around(-0.1, 0.05), around(math.nan, math.nan), 5, "shrinks"),
    ],
)
def test_the_rule(nscr: Estimate, above: Estimate, reached: float, word: str | None) -> None:
    assert verdict(found(nscr, above, reached)) == word


def lab(seed: int, problems: int = 150, answers: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Base probabilities spread over many orders of magnitude."""
    rng = np.random.default_rng(seed)
    base_pa = rng.dirichlet(np.r_[np.full(answers, 0.2), 1.5], problems)[:, :answers]
    base_pa *= 10 ** -rng.uniform(0, 3, base_pa.shape)
    return base_pa.ravel(), np.repeat(np.arange(problems), answers)


@pytest.mark.parametrize("eps", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("target", [0.4, 0.7])
def test_the_reweighting_itself_is_as_good_and_never_expands(eps: float, target: float) -> None:
    base_u, problem_u = lab(0)
    policy_u = leash_line(base_u, problem_u, target).probability_u
    against = exact_against_line(base_u, policy_u, problem_u, eps, rng=np.random.default_rng(1), resamples=400)
    assert against.nscr.value > 0.05
    assert against.above.value == 0
    assert against.above.low < 0 < against.above.high
    assert verdict(against, margin=0.05) == "as good as reweighting"


def test_truly_new_units_expand() -> None:
    base_u, problem_u = lab(3)
    base_u = np.where(np.arange(base_u.size) % 5 == 0, 0.0, base_u)
    policy_u = leash_line(base_u, problem_u, 0.5).probability_u * 0.9
    policy_u[::15] = 0.05  # of a third of the problems: an answer that no weight makes likelier
    against = exact_against_line(base_u, policy_u, problem_u, 1e-3, rng=np.random.default_rng(1), resamples=400)
    assert verdict(against) == "expands"


def test_a_policy_that_drops_rare_answers_shrinks_although_its_pass_at_1_is_higher() -> None:
    base_u, problem_u = lab(4)
    most_u = np.zeros(base_u.size)
    best = base_u.reshape(-1, 5).argmax(axis=1) + 5 * np.arange(150)
    most_u[best] = 0.8
    against = exact_against_line(base_u, most_u, problem_u, 1e-4, rng=np.random.default_rng(1), resamples=400)
    assert against.line.value > 0 > against.nscr.value
    assert verdict(against) == "shrinks"


def test_one_new_unit_is_not_enough() -> None:
    base_u, problem_u = lab(5)
    base_u[0] = 0.0
    policy_u = leash_line(base_u, problem_u, 0.5).probability_u
    policy_u[0] = 0.002
    against = exact_against_line(base_u, policy_u, problem_u, 1e-3, rng=np.random.default_rng(1), resamples=400)
    assert against.above.value > 0
    assert verdict(against) != "expands"


def test_where_the_bases_support_is_complete_nothing_expands() -> None:
    base_u, problem_u = np.full(60, 0.05), np.repeat(np.arange(12), 5)
    policy_u = np.full(60, 0.15)
    against = exact_against_line(base_u, policy_u, problem_u, 1e-3, rng=np.random.default_rng(1), resamples=400)
    assert against.reached == 0
    assert verdict(against) == "undecided"  # of 12 problems


def test_a_pass_at_1_that_no_reweighting_reaches_has_no_line() -> None:
    base_u, problem_u = np.r_[np.full(10, 0.3), np.zeros(10)], np.arange(20)
    policy_u = np.full(20, 0.8)
    against = exact_against_line(base_u, policy_u, problem_u, 1e-3, rng=np.random.default_rng(1), resamples=200)
    assert math.isnan(against.line.value)
    assert against.nscr.value == 0.5
    assert verdict(against) is None
