"""Good-Turing: the formula, and its bias against the exact missing mass."""

import itertools
import math

import numpy as np
import pytest

from offleash.eval.stats.unseen import unseen_mass


def test_answers_given_once_over_samples() -> None:
    found = unseen_mass([0, 0, 0, 1, 3], [1, 1, 6, 4, 1], [8, 4, 0, 2])
    assert found[:2] == pytest.approx([0.25, 0.0])
    assert math.isnan(found[2])
    assert found[3] == pytest.approx(0.5)


def test_at_fewer_samples_it_is_the_mean_over_subsets() -> None:
    samples = [0, 0, 0, 1, 1, 2, 3]
    for k in range(1, 8):
        subsets = list(itertools.combinations(samples, k))
        mean = sum(sum(subset.count(answer) == 1 for answer in set(subset)) for subset in subsets) / len(subsets) / k
        assert unseen_mass([0] * 4, [3, 2, 1, 1], [7], [k])[0] == pytest.approx(mean)


@pytest.mark.parametrize("n", [8, 64])
def test_on_average_it_is_the_mass_of_what_was_not_drawn(n: int) -> None:
    rng = np.random.default_rng(n)
    share = rng.dirichlet(np.full(60, 0.3))
    counts = rng.multinomial(n, share, size=4000)
    missing = (share * (counts == 0)).sum(axis=1).mean()
    problem, answer = np.nonzero(counts)
    estimate = unseen_mass(problem, counts[problem, answer], np.full(4000, n)).mean()
    assert missing <= estimate + 0.003
    assert estimate == pytest.approx(missing, abs=1 / n)
