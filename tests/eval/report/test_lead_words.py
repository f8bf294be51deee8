"""The sentence about who leads says what the signs of the curves say, read one by one."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offleash.eval.comparison.result import Curves
from offleash.eval.report.words import crossing_cell, lead_words
from offleash.eval.stats.curves import compare_curves, crossings
from offleash.eval.stats.passk import pass_at_k

LEVELS = st.sampled_from([0.0, 0.2, 0.25, 0.3, 0.6, 0.65, 1.0])


def curves_of(base_pk: np.ndarray, policy_pk: np.ndarray) -> Curves:
    ks = tuple(4**i for i in range(base_pk.shape[1]))
    found = compare_curves(base_pk, policy_pk, ks, rng=np.random.default_rng(0), resamples=100)
    return Curves(ks, tuple(found.base), tuple(found.policy), tuple(found.difference), tuple(found.leads))


def with_means(means: list[float], problems: int = 60) -> np.ndarray:
    """[p, k] of zeros and ones with these means."""
    return (np.arange(problems)[:, None] < np.round(np.array(means) * problems)).astype(float)


def leaders(sentence: str, ks: list[int]) -> dict[int, str]:
    """Who leads at each k, by the sentence; a k as printed as a crossing is left out."""
    if found := re.fullmatch(
        r"The (\w+) leads at every k compared \((?:[\d,]+ to )?[\d,]+\)( but for ties)?\.", sentence
    ):
        return dict.fromkeys(ks, found[1])
    names = re.findall(r"[Tt]he (base|policy)(?: \(within noise\))? (?:leads up to|from there)", sentence)
    ends = [float(end.replace(",", "")) for end in re.findall(r"(?:k =|there to) ([\d.,]*\d)", sentence)]
    assert len(names) == len(ends) > 1
    starts = [0.0, *ends[:-1]]
    spans = list(zip(names, starts, ends, strict=True))
    said = {
        k: name
        for k in ks
        for name, start, end in spans
        if start < k <= end and not math.isclose(k, end, rel_tol=0.006)
    }
    return said | {ks[-1]: names[-1]}


@settings(max_examples=150)
@given(st.integers(1, 6), st.data())
def test_the_sentence_agrees_with_a_plain_reading_of_the_signs(width: int, data: st.DataObject) -> None:
    base, policy = (data.draw(st.lists(LEVELS, min_size=width, max_size=width)) for _ in range(2))
    reach = data.draw(st.integers(1, width))
    base_pk, policy_pk = with_means(base), with_means(policy)
    policy_pk[:, reach:] = np.nan  # the policy has fewer draws
    curves = curves_of(base_pk, policy_pk)
    sentence = lead_words(curves)
    ks = list(curves.ks[:reach])
    differences = (base_pk - policy_pk).mean(axis=0)[:reach]
    sign_of = {k: "base" if d > 0 else "policy" for k, d in zip(ks, differences, strict=True) if d != 0}
    numbers = re.findall(r"[\d,]*\d(?:\.\d+)?", sentence)
    assert f"{ks[-1]:,}" in numbers
    assert not {f"{k:,}" for k in curves.ks[reach:]} & {*numbers}
    if not sign_of:
        assert "are equal at every k" in sentence
        return
    if "neither curve leads" in sentence:
        assert not any(lead.beyond_noise for lead in curves.leads)
        return
    said = leaders(sentence, ks)
    assert all(said[k] == side for k, side in sign_of.items() if k in said)
    assert ("at every k compared" in sentence) == (len(set(sign_of.values())) == 1)
    assert ("but for ties" in sentence) == (len(set(sign_of.values())) == 1 and len(sign_of) < len(ks))


def test_a_policy_that_overtakes_is_not_hidden_behind_the_lead_of_the_base() -> None:
    curves = curves_of(with_means([0.3, 0.3, 0.4]), with_means([0.1, 0.5, 0.8]))
    assert re.fullmatch(
        r"The base leads up to k = [\d.]+ \[[\d.]+, [\d.]+\], the policy from there to 16\.", lead_words(curves)
    )
    assert curves.state == "crosses"
    assert crossing_cell(curves) == f"{curves.leads[1].since.value:.2f}"


@pytest.mark.parametrize("ahead", ["base", "policy"])
def test_one_leader_throughout(ahead: str) -> None:
    one, other = with_means([0.3, 0.5]), with_means([0.1, 0.2])
    curves = curves_of(one, other) if ahead == "base" else curves_of(other, one)
    assert lead_words(curves) == f"The {ahead} leads at every k compared (1 to 4)."
    assert curves.state == f"{ahead}_ahead"
    assert crossing_cell(curves) == f"{ahead} ahead"


def test_a_model_against_itself_has_no_crossing_and_no_leader() -> None:
    rng = np.random.default_rng(4)
    rate_p = rng.beta(0.5, 1.0, 50)
    base, policy = (pass_at_k(rng.binomial(64, rate_p), 64, [1, 4, 16, 64]) for _ in range(2))
    curves = curves_of(base, policy)
    assert len(curves.leads) >= 1
    assert curves.state == "undecided"
    assert lead_words(curves) == "Over 50 problems neither curve leads beyond noise at any k compared (1 to 64)."
    assert crossing_cell(curves) == "–"


def test_a_crossing_into_a_lead_within_noise_says_so() -> None:
    curves = curves_of(with_means([0.1, 0.2, 0.62]), with_means([0.7, 0.6, 0.6]))
    assert curves.state == "policy_ahead"
    assert "the base (within noise) from there to 16." in lead_words(curves)


def test_a_tie_up_to_rounding_is_no_lead() -> None:
    """Both sides have 90 hits in 300 draws; their means at k = 1 differ by 6e-17."""
    ks = [1, 2, 4, 8, 10]
    base, policy = pass_at_k([3] * 30, 10, ks), pass_at_k([9] * 10 + [0] * 20, 10, ks)
    assert base.mean(axis=0)[0] != policy.mean(axis=0)[0]
    curves = Curves(tuple(ks), *map(tuple, compare_curves(base, policy, ks, rng=np.random.default_rng(0))))
    assert lead_words(curves) == "The base leads at every k compared (1 to 10) but for ties."
    assert crossings(base.mean(axis=0), policy.mean(axis=0), ks) == []
