"""Who leads at which k, against a plain reading of the signs; intervals and claims of a lead by simulation."""

import math
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offleash.eval.errors import ConfigError
from offleash.eval.stats.curves import Crossing, beyond_noise, compare_curves, crossings
from offleash.eval.stats.passk import pass_at_k

curve = st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5, math.nan]), min_size=1, max_size=8)


def test_a_crossing_is_interpolated_in_log_k() -> None:
    assert crossings([0.1, 0.3], [0.2, 0.2], [1, 4]) == [(pytest.approx(2.0), "base")]
    assert crossings([0.1, 0.2, 0.5], [0.3, 0.2, 0.4], [1, 2, 4]) == [(pytest.approx(4 ** (0.2 / 0.3)), "base")]


def test_a_policy_that_overtakes_is_reported_though_the_base_led_at_first() -> None:
    (found,) = crossings([0.073, 0.33], [0.04, 0.49], [1, 100])
    assert found.leader == "policy"
    assert 1 < found.k < 100


def test_a_lead_that_changes_hands_twice_is_reported_twice() -> None:
    base, policy = [0.1, 0.3, 0.6, 0.99], [0.2, 0.2, 0.5, 1.0]
    found = crossings(base, policy, [1, 4, 16, 64])
    assert [one.leader for one in found] == ["base", "policy"]
    assert found[0].k == pytest.approx(2.0)
    assert 16 < found[1].k < 64


def test_curves_that_do_not_cross() -> None:
    ks = [1, 2, 4]
    assert crossings([0.1, 0.2, 0.3], [0.2, 0.3, 0.4], ks) == []
    assert crossings([0.2, 0.3, 0.4], [0.2, 0.3, 0.4], ks) == []
    assert crossings([math.nan] * 3, [0.2, 0.3, 0.4], ks) == []
    assert crossings([0.1, 0.3, 0.1], [0.2, 0.3, 0.4], ks) == []  # a tie changes no lead


@given(curve, st.data())
def test_crossings_are_where_a_plain_reading_of_the_signs_changes(base: list[float], data: st.DataObject) -> None:
    policy = data.draw(st.lists(st.sampled_from([0.1, 0.2, 0.25, 0.4]), min_size=len(base), max_size=len(base)))
    ks = [3**i for i in range(len(base))]
    signs = [(k, b > p) for k, b, p in zip(ks, base, policy, strict=True) if b != p and not math.isnan(b)]
    runs = [[k for k, _ in run] for _, run in groupby(signs, key=lambda one: one[1])]
    leaders = ["base" if ahead else "policy" for ahead, _ in groupby(signs, key=lambda one: one[1])]
    found = crossings(base, policy, ks)
    assert [one.leader for one in found] == leaders[1:]
    for before, after, one in zip(runs, runs[1:], found, strict=False):
        assert before[-1] < one.k < after[0]


def spread(*means: float, problems: int = 40) -> np.ndarray:
    """[p, k] of zeros and ones with about these means over problems."""
    return (np.arange(problems)[:, None] < np.round(np.array(means) * problems)).astype(float)


def test_leads_have_every_crossing_with_the_budgets_whose_difference_may_be_zero() -> None:
    base, policy = spread(0.1, 0.2, 0.5, 0.9, 0.95), spread(0.6, 0.25, 0.45, 0.4, 1.0)
    found = compare_curves(base, policy, [1, 2, 4, 8, 16], rng=np.random.default_rng(0))
    first, second, third = found.leads
    assert (first.leader, first.since.value, first.beyond_noise) == ("policy", 1.0, True)
    assert (second.leader, second.beyond_noise) == ("base", True)
    assert (third.leader, third.beyond_noise) == ("policy", False)
    plain = crossings(base.mean(axis=0), policy.mean(axis=0), [1, 2, 4, 8, 16])
    for lead, one in zip((second, third), plain, strict=True):
        assert Crossing(lead.since.value, lead.leader) == one
        assert lead.since.low <= lead.since.value <= lead.since.high
    clear = [e.high < 0 or e.low > 0 for e in found.difference]
    assert clear == [True, False, False, True, False]
    assert 1 < second.since.low < 2
    assert 4 < second.since.high < 8
    assert (8 < third.since.low < 16, third.since.high) == (True, math.inf)


def test_only_budgets_that_both_sides_reach_have_a_leader() -> None:
    base, policy = spread(0.1, 0.6, 0.9), spread(0.5, 0.3, 0.2)
    policy[:, 2] = np.nan
    found = compare_curves(base, policy, [1, 2, 4], rng=np.random.default_rng(0))
    assert [lead.leader for lead in found.leads] == ["policy", "base"]
    assert found.leads[1].since.high <= 2 or math.isinf(found.leads[1].since.high)


def test_curve_with_an_unanswerable_budget_is_nan_there_and_only_there() -> None:
    curves = pass_at_k([2, 4], [4, 8], [1, 4, 8])
    curve = compare_curves(curves, curves, [1, 4, 8], rng=np.random.default_rng(0)).base
    assert [math.isnan(e.value) for e in curve] == [False, False, True]
    assert math.isnan(curve[2].low)


def test_a_perfect_score_is_not_called_certain() -> None:
    estimate = compare_curves(np.ones((30, 1)), np.ones((30, 1)), [1], rng=np.random.default_rng(0)).base[0]
    assert (estimate.value, estimate.high, estimate.n) == (1.0, 1.0, 30)
    assert 0.87 < estimate.low < 0.95


def test_the_same_problems_paired_have_a_difference_of_zero_and_no_lead() -> None:
    curves = pass_at_k([0, 1, 5, 9], 16, [1, 4, 16])
    paired = compare_curves(curves, curves, [1, 4, 16], rng=np.random.default_rng(0))
    assert all(e.value == 0.0 and e.low <= 0 <= e.high for e in paired.difference)
    assert paired.leads == []
    assert paired.base[0].value == paired.policy[0].value == pytest.approx(15 / 64)
    with pytest.raises(ConfigError):
        compare_curves(curves, curves[:3], [1, 4, 16], rng=np.random.default_rng(0))


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from([-1.0, -0.25, 0.0, 0.5]), min_size=3, max_size=3), max_size=5))
def test_five_problems_never_show_a_lead(rows: list[list[float]]) -> None:
    """Two of their 32 sign flips are as extreme as any result: 6 %."""
    assert not beyond_noise(np.reshape(rows, (-1, 3)), rng=np.random.default_rng(0), resamples=400).any()


def test_a_lead_of_every_problem_is_beyond_noise_at_its_k_only() -> None:
    rng = np.random.default_rng(1)
    difference_pk = np.stack([np.full(30, 0.2), rng.choice([-0.2, 0.2], 30), np.full(30, np.nan)], axis=1)
    assert beyond_noise(difference_pk, rng=rng).tolist() == [True, False, False]


@pytest.mark.parametrize(("n_base", "n_policy"), [(64, 64), (512, 64)])
def test_a_model_against_itself_is_told_apart_no_more_often_than_it_says(n_base: int, n_policy: int) -> None:
    rng = np.random.default_rng(3)
    claimed, trials = 0, 300
    for _ in range(trials):
        rate_p = rng.beta(0.5, 1.2, 40)
        base, policy = (pass_at_k(rng.binomial(n, rate_p), n, KS) for n in (n_base, n_policy))
        claimed += bool(beyond_noise(base - policy, rng=rng, resamples=200).any())
    assert claimed / trials < 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


KS = [1, 2, 4, 8, 16, 32, 64]


def population(size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rates of base and policy: the policy sharpens what is likely and loses some of what is rare."""
    base = rng.beta(0.5, 1.2, size)
    lost = rng.random(size) < 0.45 * np.exp(-6 * base)
    return base, np.where(lost, 0.0, np.minimum(1.0, 1.35 * base))


def truth(rate_p: np.ndarray) -> np.ndarray:
    return (1 - (1 - rate_p[:, None]) ** np.array(KS)).mean(axis=0)


@pytest.mark.parametrize("problems", [30, 60])
def test_intervals_of_curves_difference_and_crossing_cover_as_often_as_they_say(problems: int) -> None:
    rng = np.random.default_rng(11)
    base, policy = population(400_000, rng)
    base_truth, policy_truth = truth(base), truth(policy)
    (true_crossing,) = crossings(base_truth, policy_truth, KS)
    assert 4 < true_crossing.k < 40
    trials, n, crossed = 300, 64, 0
    covered = {name: np.zeros(len(KS)) for name in ("base", "difference", "shorter")} | {"crossing": np.zeros(1)}
    for _ in range(trials):
        base, policy = population(problems, rng)
        base_pk, policy_pk = (pass_at_k(rng.binomial(n, rate), n, KS) for rate in (base, policy))
        paired = compare_curves(base_pk, policy_pk, KS, rng=rng, resamples=400)
        covered["base"] += [e.low <= t <= e.high for e, t in zip(paired.base, base_truth, strict=True)]
        differences = base_truth - policy_truth
        covered["difference"] += [e.low <= t <= e.high for e, t in zip(paired.difference, differences, strict=True)]
        ups = [lead.since for lead in paired.leads[1:] if lead.leader == "base"]
        crossed += bool(ups)
        covered["crossing"] += any(since.low <= true_crossing.k <= since.high for since in ups)
        shuffled = compare_curves(base_pk, rng.permutation(policy_pk), KS, rng=rng, resamples=200)
        covered["shorter"] += [
            paired_e.high - paired_e.low < e.high - e.low
            for paired_e, e in zip(paired.difference, shuffled.difference, strict=True)
        ]
    share = {name: count / trials for name, count in covered.items()}
    assert np.all((share["base"] > 0.91) & (share["base"] < 0.985)), share["base"]
    assert np.all(share["difference"] > 0.92), share["difference"]  # at small k wider than needed
    assert share["difference"][-1] < 0.985
    assert covered["crossing"][0] / crossed > 0.92, (covered["crossing"], crossed)
    assert np.all(share["shorter"] > 0.9)  # keeping base and policy together is what makes the interval short
