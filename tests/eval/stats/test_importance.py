"""The balance heuristic: unbiased by enumeration, better than counting below 1/n, withheld where it would mislead."""

import itertools
import math

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.importance import Draws, mixture_rates

BASE, POLICY = np.array([0.5, 0.2, 0.2, 0.1]), np.array([0.05, 0.6, 0.0, 0.35])
UNIT = [0, 0, 1]  # completions 0 and 1 are spellings of unit 0, 2 is unit 1, 3 is wrong


def drawn(base_x, policy_x, counts_base, counts_policy, unit=None, problem=None):
    size = len(base_x)
    with np.errstate(divide="ignore"):
        logs = np.log(np.asarray(base_x, float)), np.log(np.asarray(policy_x, float))
    unit, problem = (np.zeros(size, int) if v is None else np.asarray(v) for v in (unit, problem))
    return Draws(unit, problem, np.asarray(counts_base, int), np.asarray(counts_policy, int), *logs)


@pytest.mark.parametrize(("n_base", "n_policy"), [(2, 2), (3, 1), (1, 3)])
def test_the_estimate_is_unbiased_over_every_possible_outcome(n_base: int, n_policy: int) -> None:
    expected = np.zeros((2, 2))
    for outcome in itertools.product(range(4), repeat=n_base + n_policy):
        chance = math.prod(BASE[list(outcome[:n_base])]) * math.prod(POLICY[list(outcome[n_base:])])
        if not chance:
            continue
        counts = [np.bincount(part, minlength=4)[:3] for part in (list(outcome[:n_base]), list(outcome[n_base:]))]
        rates = mixture_rates(drawn(BASE[:3], POLICY[:3], *counts, UNIT), 2, [n_base], [n_policy])
        expected += chance * np.stack([rates.base_u, rates.policy_u])
    truth = np.array([[0.7, 0.2], [0.65, 0.0]])
    assert expected == pytest.approx(truth, abs=1e-12)


def test_distinct_completions_with_counts_are_the_same_as_single_draws() -> None:
    once = mixture_rates(drawn([0.1, 0.2], [0.3, 0.01], [2, 1], [1, 0], [0, 1]), 2, [8], [8])
    rows = drawn([0.1] * 3 + [0.2], [0.3] * 3 + [0.01], [1, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1])
    single = mixture_rates(rows, 2, [8], [8])
    assert np.allclose(once.base_u, single.base_u)
    assert np.allclose(once.policy_u, single.policy_u)
    assert once[2:] == pytest.approx(single[2:])


def test_no_weight_exceeds_that_of_a_plain_count() -> None:
    rng = np.random.default_rng(0)
    base, policy = rng.dirichlet(np.full(50, 0.1)), rng.dirichlet(np.full(50, 0.1))
    counts = rng.multinomial(40, base), rng.multinomial(10, policy)
    rates = mixture_rates(drawn(base, policy, *counts, np.arange(50)), 50, [40], [10])
    assert np.all(rates.policy_u <= (counts[0] + counts[1]) / 10 + 1e-12)
    assert np.all(rates.base_u <= (counts[0] + counts[1]) / 40 + 1e-12)


def test_two_models_that_hardly_overlap_are_withheld_and_the_effective_samples_fall() -> None:
    rng = np.random.default_rng(1)
    counts, none = np.ones(400, int), np.zeros(400, int)
    found = []
    for spread in (0.0, 1.0, 3.0):
        base = np.full(400, -8.0)
        policy = base - spread**2 / 2 + spread * rng.standard_normal(400)
        rows = Draws(np.arange(400), np.repeat(np.arange(4), 100), counts, none, base, np.minimum(policy, 0))
        found.append(mixture_rates(rows, 400, np.full(4, 100), np.full(4, 100)))
    assert [rates.withheld for rates in found] == [False, False, True]
    assert found[0].effective_samples == pytest.approx(100)
    assert found[0].effective_samples > found[1].effective_samples > found[2].effective_samples
    assert found[1].log_ratio_variance == pytest.approx(1, rel=0.2)
    assert mixture_rates(drawn([], [], [], []), 1, [8], [8]).withheld  # nothing says that it may be trusted


@pytest.mark.parametrize(
    ("base", "policy", "counts", "n"),
    [
        ([math.nan], [-1.0], ([1], [0]), 4),
        ([0.5], [-1.0], ([1], [0]), 4),
        ([-1.0], [-1.0], ([5], [0]), 4),
        ([-math.inf], [-1.0], ([1], [0]), 4),
        ([-1.0], [-1.0], ([0], [0]), 0),
    ],
)
def test_impossible_draws_are_refused(base, policy, counts, n) -> None:
    zero = np.zeros(1, int)
    with pytest.raises(ConfigError):
        mixture_rates(Draws(zero, zero, *map(np.array, counts), np.array(base), np.array(policy)), 1, [n], [n])
