"""The sentence about sampling noise: which p it leads with, and what it says where there is none."""

import math

from offleash.eval.comparison.result import Noise
from offleash.eval.report.tables import noise_words


def test_the_sentence_leads_with_strength_and_names_how_many_units_are_sure() -> None:
    words = noise_words(Noise(19.6, 17.4, 0.39, 0.0005, (3, 8)), "lose", "held", cut=True)
    assert "would lose 19.6" in words
    assert words.index("p < .001 by how firmly they were held in all samples") < words.index("p = .390 by their number")
    assert words.endswith("Beyond chance one by one in all samples: 2")


def test_all_samples_are_named_only_where_the_count_is_of_fewer() -> None:
    assert "all samples" not in noise_words(Noise(19.6, 17.4, 0.39, 0.0005, (3, 8)), "lose", "held")


def test_one_draw_is_said_to_be_not_informative() -> None:
    words = noise_words(Noise(math.nan, math.nan, 0.5, 0.5, ()), "lose", "held")
    assert "not informative at n = 1" in words
    assert "p = .500" in words


def test_where_no_test_is_known_nothing_is_claimed() -> None:
    words = noise_words(Noise(math.nan, math.nan, math.nan, math.nan, ()), "gain", "gained")
    assert "unknown" in words
    assert "p" not in words.replace("sampling", "")


def test_an_expected_count_that_only_the_tail_of_a_fit_knows_has_no_digits() -> None:
    assert "would lose <0.001 (" in noise_words(Noise(2e-9, 2.0, 0.01, 0.01, (0,)), "lose", "held")
    assert "would lose 0 (" in noise_words(Noise(0.0, 0.0, 1.0, 1.0, ()), "lose", "held")
