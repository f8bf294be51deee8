"""What a run prints about support that it lost and gained."""

import math

from offleash.callbacks import tags
from offleash.callbacks.summary import leash_words, moved_words


def metrics(**values: float) -> dict[str, float]:
    return {getattr(tags.UNIT, name).tag: value for name, value in values.items()}


def test_lost_and_gained_come_with_the_p_of_strength_and_the_units_beyond_chance() -> None:
    found = metrics(
        shrunk=98, p_shrunk=0.4, p_shrunk_strength=0.0005, shrunk_sure=37,
        expanded=12, p_expanded=0.001, p_expanded_strength=0.31, expanded_sure=0,
    )  # fmt: skip
    assert moved_words(found) == "lost 98 (p < .001, 37 beyond chance), gained 12 (p = .310, none beyond chance)"


def test_the_record_of_an_older_run_has_no_strength() -> None:
    words = moved_words(metrics(shrunk=98, expanded=12, p_shrunk_strength=math.nan))
    assert words == "lost 98 (p unknown, unknown beyond chance), gained 12 (p unknown, unknown beyond chance)"


def test_the_verdict_is_said_with_the_difference_that_it_rests_on() -> None:
    line = {"above": -0.25, "above_low": -0.31, "above_high": -0.2, "policy_nscr_low": -0.2, "policy_nscr_high": -0.1}
    found = {getattr(tags.LEASH, name).tag: value for name, value in line.items()}
    verdict, beside = leash_words(found | metrics(nscr=-0.15, expanded=3))
    assert verdict == "Verdict: shrinks. NSCR differs by -0.250 [-0.310, -0.200] from that of the"
    assert beside == "KL-optimal reweighting of the base at this pass@1."
    assert leash_words(metrics(nscr=-0.15)) == []
