"""Effective number of answers and PCMD: closed forms, brute force over pairs, and unbiasedness by enumeration."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offleash.eval.errors import ConfigError
from offleash.eval.stats.diversity import effective_answers, pcmd
from offleash.eval.stats.entropy import answer_entropy, answer_entropy_corrected


def of_one(counts: list[int]) -> float:
    return float(pcmd([0] * len(counts), counts, 1)[0])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_pcmd_is_the_share_of_pairs_of_correct_samples_that_differ(counts: list[int]) -> None:
    samples = [answer for answer, count in enumerate(counts) for _ in range(count)]
    pairs = list(combinations(samples, 2))
    if not pairs:
        assert math.isnan(of_one(counts))
    else:
        assert of_one(counts) == pytest.approx(sum(a != b for a, b in pairs) / len(pairs))


def test_pcmd_is_unbiased() -> None:
    share, n = [0.6, 0.3, 0.1], 4
    expected = sum(
        math.prod(share[a] for a in drawn) * of_one([drawn.count(c) for c in range(3)])
        for drawn in product(range(3), repeat=n)
    )
    assert expected == pytest.approx(1 - sum(s * s for s in share))


def test_pcmd_of_each_problem_in_any_order_and_refuses_what_is_no_count() -> None:
    found = pcmd([2, 0, 2, 0, 1], [1, 3, 1, 0, 1], 4)
    np.testing.assert_equal(found, [0.0, math.nan, 1.0, math.nan])
    for bad in ([-1], [0.5], [math.nan]):
        with pytest.raises(ConfigError):
            pcmd([0], bad, 1)
    with pytest.raises(ConfigError):
        pcmd([4], [1], 4)


def test_equally_likely_answers_are_their_own_effective_number() -> None:
    entropies = [answer_entropy([8] * m) for m in (1, 2, 5)]
    np.testing.assert_allclose(effective_answers(entropies), [1, 2, 5])
    assert math.isnan(effective_answers([math.nan])[0])


def test_the_corrected_entropy_gives_the_less_biased_effective_number() -> None:
    rng, share, n = np.random.default_rng(1), np.full(20, 1 / 20), 30
    counts = [row[row > 0] for row in rng.multinomial(n, share, size=400)]
    plain, corrected = (
        float(np.mean(effective_answers([entropy(c) for c in counts])))
        for entropy in (answer_entropy, answer_entropy_corrected)
    )
    assert plain < 15  # of 20
    assert abs(corrected - 20) < 0.4 * (20 - plain)
