"""The sentence about sampling noise: which p it leads with, and what it says where there is none."""

import math
from pathlib import Path

from offleash.eval.comparison.compare import compare
from offleash.eval.comparison.result import Noise
from offleash.eval.pool.testing import make_pool
from offleash.eval.report.numbers import p_words
from offleash.eval.report.tables import sections
from offleash.eval.report.words import noise_words


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


def test_at_fewer_samples_the_p_beside_a_count_is_of_that_count(tmp_path: Path) -> None:
    base = make_pool(tmp_path / "base", [8] * 20 + [1] * 20, k=64)
    policy = make_pool(tmp_path / "policy", [16] * 10 + [0] * 30, k=16)
    (section,) = sections(compare(base, policy, resamples=50))
    assert section.result is not None
    stable = section.result.overall.units.stable
    assert stable is not None
    assert stable.expanded.p < 0.05 < stable.expanded.p_strength  # of 5 hits in 16 samples; of 5 in all
    row = next(row for table in section.tables for row in table.rows if row[0].endswith("hits ≥ 5"))
    assert f"({p_words(stable.expanded.p)};" in row[6]
