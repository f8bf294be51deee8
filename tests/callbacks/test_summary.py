"""What a run prints about support that it lost and gained."""

import math

import pytest

from offleash.callbacks import tags
from offleash.callbacks.summary import (
    leash_words,
    moved_words,
    noise_rates,
    spelling_words,
    sure_words,
    unit_words,
)


def metrics(**values: float) -> dict[str, float]:
    return {getattr(tags.UNIT, name).tag: value for name, value in values.items()}


def test_lost_and_gained_come_with_noise_and_the_p_of_strength() -> None:
    found = metrics(
        shrunk=98, expected_shrunk=21.34, p_shrunk=0.4, p_shrunk_strength=0.0005, shrunk_sure=37,
        expanded=12, expected_expanded=20, p_expanded=0.001, p_expanded_strength=0.31, expanded_sure=0,
    )  # fmt: skip
    assert moved_words(found) == "solutions lost 98 (noise 21.3, p < .001), gained 12 (noise 20.0, p = .310)"
    assert sure_words(found) == "beyond chance one by one: 37 lost, none gained"


def test_the_record_of_an_older_run_has_no_noise() -> None:
    words = moved_words(metrics(shrunk=98, expanded=12, p_shrunk_strength=math.nan))
    assert words == "solutions lost 98 (noise unknown, p unknown), gained 12 (noise unknown, p unknown)"


def test_problems_are_lost_where_each_has_one_unit_and_solutions_otherwise() -> None:
    cells = {"preserved": 5.0, "shrunk": 2.0, "expanded": 1.0, "out": 0.0}
    problems = {getattr(tags.PROBLEM, name).tag: value for name, value in cells.items()}
    assert unit_words(metrics(**cells) | problems) == "problems"
    assert unit_words(metrics(**{**cells, "out": 40.0}) | problems) == "solutions"


def test_noise_rates_are_those_of_a_base_that_is_sampled_twice() -> None:
    found = noise_rates(metrics(preserved=80, shrunk=20, expected_shrunk=10, expected_expanded=8))
    assert found[tags.UNIT.srr.tag] == pytest.approx(0.9)
    assert found[tags.UNIT.ndr.tag] == pytest.approx(8 / 98)
    assert found[tags.UNIT.nscr.tag] == pytest.approx(-2 / 108)
    assert all(map(math.isnan, noise_rates(metrics(preserved=80, shrunk=20)).values()))


def test_a_base_that_solved_nothing_has_no_noise_rates() -> None:
    found = noise_rates(metrics(preserved=0, shrunk=0, expected_shrunk=0, expected_expanded=1e-4))
    assert all(map(math.isnan, found.values()))


def test_spellings_are_named_as_such_and_only_where_they_are_told_apart() -> None:
    spelled = {tags.SPELLING.shrunk.tag: 40.0, tags.SPELLING.p_shrunk_strength.tag: 0.02}
    assert spelling_words(spelled) == ", spellings lost 40 (p = .020)"
    assert spelling_words({}) == ""


def test_the_verdict_is_said_with_the_difference_that_it_rests_on() -> None:
    line = {"above": -0.25, "above_low": -0.31, "above_high": -0.2, "policy_nscr_low": -0.2, "policy_nscr_high": -0.1}
    found = {getattr(tags.LEASH, name).tag: value for name, value in line.items()}
    verdict, beside = leash_words(found | metrics(nscr=-0.15, expanded=3))
    assert verdict == "Verdict: shrinks. NSCR differs by -0.250 [-0.310, -0.200] from that of the"
    assert beside == "KL-optimal reweighting of the base at this pass@1."
    assert leash_words(metrics(nscr=-0.15)) == []
