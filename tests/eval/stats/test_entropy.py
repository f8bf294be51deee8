"""Answer entropy: the paper's convention exactly, closed forms, and less bias than the plug-in where it matters."""

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.entropy import (
    answer_entropies,
    answer_entropy,
    answer_entropy_at_k,
    answer_entropy_corrected,
)


def test_no_answer_is_a_class_and_the_unit_is_the_nat() -> None:
    counts = Counter(["7", "7", None, None, "1/2", "7", None, "12"])
    assert answer_entropy(list(counts.values())) == pytest.approx(
        -2 * (3 / 8) * math.log(3 / 8) - 2 / 8 * math.log(1 / 8)
    )
    assert answer_entropy(list(Counter([None] * 32).values())) == 0.0
    assert answer_entropy([1] * 32) == pytest.approx(math.log(32))  # the paper's largest possible value, 3.47


def test_one_class_has_no_entropy_and_no_samples_have_no_number() -> None:
    for entropy in (answer_entropy, answer_entropy_corrected):
        assert entropy([32]) == 0.0
        assert entropy([32, 0, 0]) == 0.0
        assert entropy([2]) == 0.0
        assert math.isnan(entropy([]))
        assert math.isnan(entropy([0, 0]))
        with pytest.raises(ConfigError):
            entropy([0.5, 1])
        with pytest.raises(ConfigError):
            entropy([-1, 2])


def chao_wang_jost(counts: list[int]) -> float:
    """The formula as published, term by term."""
    n, f1, f2 = sum(counts), counts.count(1), counts.count(2)
    value = sum(x / n * sum(1 / k for k in range(x, n)) for x in counts)
    if f1 == 0:
        return value
    a = 2 * f2 / ((n - 1) * f1 + 2 * f2) if f2 else 2 / ((n - 1) * (f1 - 1) + 2)
    if a == 1:
        return value  # the limit of what follows
    return value + f1 / n * (1 - a) ** (1 - n) * (-math.log(a) - sum((1 - a) ** r / r for r in range(1, n)))


@pytest.mark.parametrize("counts", [[1, 1], [2, 1], [5, 2, 1], [1] * 8, [9, 4, 2, 2, 1, 1, 1], [20, 8, 3, 1], [3, 3]])
def test_corrected_is_the_published_formula(counts: list[int]) -> None:
    assert answer_entropy_corrected(counts) == pytest.approx(chao_wang_jost(counts), rel=1e-9)


def test_corrected_stays_finite_and_sensible_at_the_extremes_of_a_large_pool() -> None:
    assert answer_entropy_corrected([8191, 1]) == pytest.approx(answer_entropy([8191, 1]), rel=0.2)
    assert answer_entropy_corrected([4095] + [2] * 2048 + [1]) == pytest.approx(
        answer_entropy([4095] + [2] * 2048), rel=0.1
    )
    assert math.log(8192) < answer_entropy_corrected([1] * 8192) < 3 * math.log(8192)


DISTRIBUTIONS = {
    "sure": [0.97, 0.02, 0.01],
    "coin": [0.5, 0.5],
    "one answer and a tail": [0.5, *[0.5 / 20] * 20],
    "geometric": [0.5**i for i in range(1, 12)] + [0.5**11],
    "flat": [1 / 12] * 12,
    "zipf": (1 / np.arange(1, 41) / np.sum(1 / np.arange(1, 41))).tolist(),
}


def biases(p: np.ndarray, n: int, trials: int = 1500) -> tuple[float, float, float]:
    """Bias of the plug-in, bias of the corrected entropy, and the latter's standard error."""
    truth = float(-np.sum(p * np.log(p)))
    counts = np.random.default_rng(n).multinomial(n, p, size=trials)
    corrected = [answer_entropy_corrected(c) for c in counts]
    plain = float(np.mean([answer_entropy(c) for c in counts])) - truth
    return plain, float(np.mean(corrected)) - truth, float(np.std(corrected)) / math.sqrt(trials)


@pytest.mark.parametrize("n", [8, 16, 32, 64])
def test_corrected_is_less_biased_than_the_plug_in(n: int) -> None:
    ratios = []
    for name, p in DISTRIBUTIONS.items():
        plain, corrected, error = biases(np.array(p), n)
        assert plain < 0, name
        assert abs(corrected) < abs(plain), name
        ratios.append(max(0.0, abs(corrected) - 2 * error) / abs(plain))
    assert np.mean(ratios) < 0.4, ratios


def test_flat_classes_give_every_problem_its_entropy() -> None:
    rng = np.random.default_rng(0)
    problem, count = rng.integers(0, 5, 40), rng.integers(0, 6, 40)
    problem[problem == 2] = 3  # problem 2 has no samples
    plain, corrected = answer_entropies(problem, count, 6)
    for p in range(6):
        counts = count[problem == p]
        assert plain[p] == pytest.approx(answer_entropy(counts), nan_ok=True)
        assert corrected[p] == pytest.approx(answer_entropy_corrected(counts), nan_ok=True)
    assert np.isnan(plain[[2, 5]]).all()
    assert answer_entropies([], [], 0)[0].shape == (0,)
    assert np.isnan(answer_entropies([], [], 2)[0]).all()
    for arguments in (([5], [1], 5), ([-1], [1], 5), ([0, 1], [1], 5)):
        with pytest.raises(ConfigError):
            answer_entropies(*arguments)


@pytest.mark.parametrize("counts", [[4, 3, 1], [1, 1, 1, 1], [7], [5, 2]])
def test_entropy_at_k_is_the_mean_over_all_subsets(counts: list[int]) -> None:
    samples = [answer for answer, times in enumerate(counts) for _ in range(times)]
    for k in range(1, len(samples) + 1):
        subsets = [answer_entropy(list(Counter(subset).values())) for subset in combinations(samples, k)]
        assert answer_entropy_at_k(counts, k) == pytest.approx(np.mean(subsets), abs=1e-12)
    assert math.isnan(answer_entropy_at_k(counts, len(samples) + 1))
    assert answer_entropy_at_k(counts, len(samples)) == answer_entropy(counts)


def test_entropy_at_k_of_many_samples_is_finite_and_nears_that_of_all() -> None:
    counts = [5000, 3000, 150, *[1] * 42]
    assert answer_entropy_at_k(counts, 8191) == pytest.approx(answer_entropy(counts), abs=1e-5)
    assert answer_entropy_at_k(counts, 1) == pytest.approx(0.0, abs=1e-12)


def test_one_sample_has_no_corrected_entropy() -> None:
    assert math.isnan(answer_entropy_corrected([1]))
    assert math.isnan(answer_entropies([0, 1, 1], [1, 1, 1], 2)[1][0])
