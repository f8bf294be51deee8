"""pass@k against exact fractions, brute force and known answers; its intervals and the crossing by simulation."""

import itertools
import math
import time
from fractions import Fraction

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.passk import (
    budgets,
    compare_curves,
    crossing,
    majority_at_k,
    pass_at_k,
)


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


def test_crossing_is_interpolated_in_log_k() -> None:
    assert crossing([0.1, 0.3], [0.2, 0.2], [1, 4]) == pytest.approx(2.0)
    assert crossing([0.1, 0.2, 0.5], [0.3, 0.2, 0.4], [1, 2, 4]) == pytest.approx(1 * 4 ** (0.2 / 0.3))


def test_a_lead_that_changes_hands_again_where_the_curves_saturate_does_not_move_the_crossing() -> None:
    base, policy = [0.1, 0.3, 0.6, 0.999], [0.2, 0.2, 0.5, 1.0]
    assert crossing(base, policy, [1, 4, 16, 64]) == pytest.approx(2.0) == crossing(base[:3], policy[:3], [1, 4, 16])


def test_crossing_of_curves_that_do_not_cross() -> None:
    ks = [1, 2, 4]
    assert crossing([0.1, 0.2, 0.3], [0.2, 0.3, 0.4], ks) == math.inf
    assert crossing([0.2, 0.3, 0.4], [0.1, 0.2, 0.3], ks) == 1.0
    assert math.isnan(crossing([0.2, 0.3, 0.4], [0.2, 0.3, 0.4], ks))
    assert math.isnan(crossing([math.nan] * 3, [0.2, 0.3, 0.4], ks))


def test_of_two_equal_leads_the_later_counts_and_a_tie_at_the_end_changes_nothing() -> None:
    assert crossing([0.3, 0.1, 0.5, 1.0], [0.2, 0.2, 0.4, 1.0], [1, 2, 4, 8]) == pytest.approx(2 * 2**0.5)
    assert crossing([0.1, 0.3, 0.1, 0.3], [0.2, 0.2, 0.2, 0.2], [1, 2, 4, 8]) == pytest.approx(4 * 2**0.5)
    assert crossing([0.1, 0.5, 1.0], [0.2, 0.6, 1.0], [1, 2, 4]) == math.inf


def test_curve_with_an_unanswerable_budget_is_nan_there_and_only_there() -> None:
    curves = pass_at_k([2, 4], [4, 8], [1, 4, 8])
    curve = compare_curves(curves, curves, [1, 4, 8], rng=np.random.default_rng(0)).base
    assert [math.isnan(e.value) for e in curve] == [False, False, True]
    assert math.isnan(curve[2].low)


def test_a_perfect_score_is_not_called_certain() -> None:
    estimate = compare_curves(np.ones((30, 1)), np.ones((30, 1)), [1], rng=np.random.default_rng(0)).base[0]
    assert (estimate.value, estimate.high, estimate.n) == (1.0, 1.0, 30)
    assert 0.87 < estimate.low < 0.95


def test_the_same_problems_paired_have_a_difference_of_zero_and_no_crossing() -> None:
    curves = pass_at_k([0, 1, 5, 9], 16, [1, 4, 16])
    paired = compare_curves(curves, curves, [1, 4, 16], rng=np.random.default_rng(0))
    assert all(e.value == 0.0 and e.low <= 0 <= e.high for e in paired.difference)
    assert math.isnan(paired.crossing.value)
    assert paired.base[0].value == paired.policy[0].value == pytest.approx(15 / 64)
    with pytest.raises(ConfigError):
        compare_curves(curves, curves[:3], [1, 4, 16], rng=np.random.default_rng(0))


KS = [1, 2, 4, 8, 16, 32, 64]


def population(size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rates of base and policy: the policy sharpens what is likely and loses some of what is rare."""
    base = rng.beta(0.5, 1.2, size)
    lost = rng.random(size) < 0.45 * np.exp(-6 * base)
    return base, np.where(lost, 0.0, np.minimum(1.0, 1.35 * base))


def truth(rate_p: np.ndarray) -> np.ndarray:
    return (1 - (1 - rate_p[:, None]) ** np.array(KS)).mean(axis=0)


def test_intervals_of_curves_difference_and_crossing_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(11)
    base, policy = population(400_000, rng)
    base_truth, policy_truth = truth(base), truth(policy)
    true_crossing = crossing(base_truth, policy_truth, KS)
    assert 4 < true_crossing < 40
    trials, problems, n = 300, 60, 64
    covered = {name: np.zeros(len(KS)) for name in ("base", "difference", "shorter")} | {"crossing": np.zeros(1)}
    for _ in range(trials):
        base, policy = population(problems, rng)
        base_pk, policy_pk = (pass_at_k(rng.binomial(n, rate), n, KS) for rate in (base, policy))
        paired = compare_curves(base_pk, policy_pk, KS, rng=rng, resamples=400)
        covered["base"] += [e.low <= t <= e.high for e, t in zip(paired.base, base_truth, strict=True)]
        differences = base_truth - policy_truth
        covered["difference"] += [e.low <= t <= e.high for e, t in zip(paired.difference, differences, strict=True)]
        covered["crossing"] += paired.crossing.low <= true_crossing <= paired.crossing.high
        shuffled = compare_curves(base_pk, rng.permutation(policy_pk), KS, rng=rng, resamples=200)
        covered["shorter"] += [
            paired_e.high - paired_e.low < e.high - e.low
            for paired_e, e in zip(paired.difference, shuffled.difference, strict=True)
        ]
    share = {name: count / trials for name, count in covered.items()}
    assert np.all((share["base"] > 0.91) & (share["base"] < 0.985)), share["base"]
    assert np.all((share["difference"] > 0.91) & (share["difference"] < 0.99)), share["difference"]
    assert 0.91 < share["crossing"][0] < 0.99, share["crossing"]
    assert np.all(share["shorter"] > 0.95)  # keeping base and policy together is what makes the interval short
