"""pass@k against exact fractions, brute force and known answers; majority by enumeration."""

import itertools
import math
import time
from fractions import Fraction

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.passk import budgets, majority_at_k, pass_at_k


def exact_pass(n: int, c: int, k: int) -> Fraction:
    return 1 - Fraction(math.comb(n - c, k), math.comb(n, k))


def test_small_pools_match_the_share_of_subsets_with_a_correct_sample() -> None:
    for n in range(1, 8):
        for c in range(n + 1):
            flags = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                subsets = list(itertools.combinations(flags, k))
                assert pass_at_k([c], [n], [k])[0, 0] == pytest.approx(np.mean([any(s) for s in subsets]), abs=1e-15)


def test_a_pool_of_16384_matches_exact_fractions_to_1e_12() -> None:
    n = 16384
    corrects = [0, 1, 2, 3, 7, 50, 500, 1500, 8000, 16000, 16383, 16384]
    ks = [1, 2, 3, 10, 64, 100, 511, 1024, 3000, 8192, 12000, 16000, 16383, 16384]
    passed = pass_at_k(corrects, n, ks)
    for i, c in enumerate(corrects):
        for j, k in enumerate(ks):
            assert abs(Fraction(float(passed[i, j])) - exact_pass(n, c, k)) < Fraction(1, 10**12)


def test_one_correct_of_n_gives_k_over_n_where_bootstrapped_best_of_n_stops_at_63_percent() -> None:
    n = 16384
    ks = np.arange(1, n + 1)
    assert np.allclose(pass_at_k([1], [n], ks)[0], ks / n, rtol=0, atol=1e-12)


def test_every_budget_of_hundreds_of_large_pools_takes_seconds() -> None:
    correct_p = np.random.default_rng(0).integers(0, 16385, 500)
    start = time.process_time()
    curves = pass_at_k(correct_p, 16384, np.arange(1, 16385))
    assert time.process_time() - start < 20  # the comb loop: 111 s for each problem
    assert curves.shape == (500, 16384)
    assert np.all(np.diff(curves, axis=1) >= 0)


def test_budgets_beyond_the_pool_are_undefined_per_problem() -> None:
    curves = pass_at_k([0, 2, 3], [4, 2, 8], [1, 2, 4, 8, 9])
    assert np.isnan(curves).tolist() == [
        [False, False, False, True, True],
        [False, False, True, True, True],
        [False, False, False, False, True],
    ]
    assert curves[1, 1] == 1.0
    assert np.isnan(pass_at_k([0], [0], [1])[0, 0])


def test_impossible_counts_and_budgets_are_refused() -> None:
    for correct, k in [(3.0, 1), (-1.0, 1), (1.0, 0), (0.5, 1)]:
        with pytest.raises(ConfigError):
            pass_at_k([correct], [2], [k])


def test_no_problems_and_no_budgets_give_empty_arrays() -> None:
    assert pass_at_k([], [], [1, 2]).shape == (0, 2)
    assert pass_at_k([1], [2], []).shape == (1, 0)


def test_pass_at_1_is_the_share_of_correct_samples() -> None:
    assert pass_at_k([0, 3, 8], [8, 4, 8], [1])[:, 0].tolist() == [0.0, 0.75, 1.0]


def test_the_ladder_ends_at_n() -> None:
    assert budgets(8) == [1, 2, 4, 8]
    assert budgets(12) == [1, 2, 4, 8, 12]
    assert budgets(0) == []


def exact_majority(counts: list[int], correct: list[bool], k: int) -> float:
    samples = [a for a, count in enumerate(counts) for _ in range(count)]
    scores = []
    for subset in itertools.combinations(samples, k):
        votes = [subset.count(a) for a in range(len(correct))]
        winners = [a for a in range(len(correct)) if votes[a] == max(votes) and votes[a] > 0]
        scores.append(sum(correct[a] for a in winners) / len(winners) if winners else 0.0)
    return float(np.mean(scores))


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
@pytest.mark.parametrize(
    ("counts", "correct"),
    [([4, 3, 2], [True, False, False]), ([3, 3, 3], [False, True, True]), ([2, 1, 6], [True, False])],
)
def test_majority_matches_every_subset_with_ties_split_and_no_answer_abstaining(
    counts: list[int], correct: list[bool], k: int
) -> None:
    estimate = majority_at_k(counts, correct, k, rng=np.random.default_rng(0), resamples=20_000)
    assert estimate == pytest.approx(exact_majority(counts, correct, k), abs=4 * 0.5 / math.sqrt(20_000))


def test_majority_of_the_whole_pool_needs_no_luck() -> None:
    rng = np.random.default_rng(0)
    assert majority_at_k([5, 4], [True, False], 9, rng=rng) == 1.0
    assert majority_at_k([4, 4], [True, False], 8, rng=rng) == 0.5
    assert majority_at_k([1, 8], [True], 9, rng=rng) == 1.0
    assert majority_at_k([0, 8], [True], 8, rng=rng) == 0.0
    assert majority_at_k([8], [], 8, rng=rng) == 0.0
    assert math.isnan(majority_at_k([4, 4], [True, False], 9, rng=rng))
    with pytest.raises(ConfigError):
        majority_at_k([1, 2, 3], [True], 2, rng=rng)
