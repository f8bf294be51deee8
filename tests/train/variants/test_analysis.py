"""Verdicts: rarely wrong where nothing differs, found where something does, nothing claimed without its controls."""

import math
from dataclasses import replace

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.train.variants.analysis import analyze, at_equal_pass
from offleash.train.variants.results import Measured

CONTROLS = {"plain": (0.5, -0.2), "placebo": (0.5, -0.2), "low_lr": (0.5, -0.2)}


def words(analysis):
    return {variant.name: variant.verdict.word for variant in analysis.variants}


def test_where_nothing_differs_better_is_said_in_less_than_one_family_of_twenty(make_runs):
    """Margin 1: only NSCR decides, which is the harder case. A test without any correction fails this bound."""
    rng, families = np.random.default_rng(3), 120
    truth = {**CONTROLS, **{f"v{i}": (0.5, -0.2) for i in range(4)}}
    wrong = naive = 0
    for _ in range(families):
        analysis = analyze(make_runs(truth, 5, rng), margin=1.0)
        wrong += "better" in words(analysis).values()
        naive += any(v.against["plain"]["nscr"].p < 0.05 for v in analysis.variants if not v.is_control)
    assert wrong / families <= 0.05
    assert naive / families > 0.08


def test_the_correction_alone_holds_the_family_wise_rate(make_runs):
    rng, families = np.random.default_rng(4), 200
    truth = {"plain": (0.5, -0.2), **{f"v{i}": (0.5, -0.2) for i in range(4)}}
    wrong = sum(
        any(v.holm_p["nscr"] < 0.05 for v in analyze(make_runs(truth, 4, rng)).variants) for _ in range(families)
    )
    assert wrong / families <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / families)


ELSEWHERE = {
    "as_low_lr": {"plain": (0.5, -0.5), "placebo": (0.5, -0.5), "low_lr": (0.5, -0.2)},
    "costly": {"plain": (0.6, -0.5), "placebo": (0.5, -0.5), "low_lr": (0.5, -0.5)},
}
"""Of 21 variants at (.5, -.2) none is better, and it is not plain's NSCR that shows it. Margin .1."""


@pytest.mark.parametrize("sweeps", [40, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("where", ELSEWHERE)
def test_the_family_wise_rate_holds_whichever_claim_fails(make_runs, where, sweeps):
    """Corrected against plain's NSCR alone, 25 to 40 % of these sweeps would call some variant better."""
    rng = np.random.default_rng(11)
    truth = {**ELSEWHERE[where], **{f"v{i}": (0.5, -0.2) for i in range(21)}}
    wrong = naive = 0
    for _ in range(sweeps):
        variants = analyze(make_runs(truth, 5, rng), margin=0.1).variants[3:]
        wrong += any(v.verdict.word == "better" for v in variants)
        naive += any(
            v.holm_p["nscr"] < 0.05
            and v.verdict.pass_no_worse
            and all(of["nscr"].is_above for of in v.against.values())
            for v in variants
        )
    print(f"{where}: {wrong} of {sweeps} sweeps call a variant better")
    assert wrong / sweeps <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / sweeps)
    assert naive / sweeps > 0.15


def test_variants_without_numbers_count_in_the_correction(make_runs):
    runs = make_runs({**CONTROLS, "good": (0.5, -0.12)}, 5, np.random.default_rng(2))
    alone, among = (analyze(runs, 0.1, tried) for tried in ((), [f"v{i}" for i in range(20)]))
    assert (alone.family, among.family) == (1, 21)
    assert words(alone)["good"] == "better"
    assert among.variants[-1].better_p == pytest.approx(21 * alone.variants[-1].better_p)
    assert among.variants[-1].holm_p["nscr"] == pytest.approx(21 * alone.variants[-1].holm_p["nscr"])
    assert among.variants[-1].verdict.word == "no"
    assert "21 variants" in among.variants[-1].verdict.why
    assert analyze(runs, 0.1, ["good", "placebo", "high_lr"]).family == 1


def test_what_the_control_of_a_variant_does_as_well_is_not_better(make_runs):
    truth = {**CONTROLS, "two_updates": (0.5, -0.05), "clip_higher": (0.5, -0.05), "focal": (0.5, -0.05)}
    runs = make_runs(truth, 5, np.random.default_rng(0), noise=0.01)
    runs = [replace(run, controls=("two_updates",)) if run.variant == "clip_higher" else run for run in runs]
    analysis = analyze(runs, margin=0.05)
    assert words(analysis)["focal"] == "better"
    assert words(analysis)["clip_higher"] == "no"
    assert next(v for v in analysis.variants if v.name == "clip_higher").verdict.why == "NSCR not above two_updates"
    without = analyze([run for run in runs if run.variant != "two_updates"], margin=0.05)
    assert words(without)["clip_higher"] == "open"
    assert "two_updates" in without.variants[-2].verdict.why
    assert any("clip_higher" in text and "two_updates" in text for text in without.warnings)


def test_a_planted_effect_is_found_and_its_neighbours_are_not_called_better(make_runs):
    rng, found = np.random.default_rng(5), 0
    truth = {**CONTROLS, "good": (0.51, -0.05), "same": (0.5, -0.2), "costly": (0.40, -0.05)}
    for _ in range(40):
        verdicts = words(analyze(make_runs(truth, 5, rng, noise=0.01), margin=0.02))
        found += verdicts["good"] == "better"
        assert verdicts["costly"] == "no"
        assert verdicts["plain"] == verdicts["placebo"] == verdicts["low_lr"] == "control"
    assert found >= 36


def test_what_a_lower_learning_rate_does_as_well_is_not_better(make_runs):
    truth = {**CONTROLS, "low_lr": (0.5, -0.05), "good": (0.5, -0.05)}
    analysis = analyze(make_runs(truth, 5, np.random.default_rng(0), noise=0.01), margin=0.03)
    verdict = analysis.variants[-1].verdict
    assert verdict.word == "no"
    assert verdict.why == "NSCR not above low_lr"


def test_without_placebo_the_question_stays_open(make_runs):
    truth = {"plain": (0.5, -0.2), "low_lr": (0.5, -0.2), "good": (0.5, 0.1)}
    analysis = analyze(make_runs(truth, 5, np.random.default_rng(0), noise=0.01), margin=0.05)
    verdict = analysis.variants[-1].verdict
    assert verdict.word == "open"
    assert "placebo" in verdict.why
    assert any("placebo" in text for text in analysis.warnings)
    assert verdict.expands
    assert verdict.expands_significantly


def test_expanding_significantly_needs_the_interval_and_both_need_pass_at_1():
    def runs(variant, passed, *nscr, start=0.0):
        points = [((0.3, start), (passed + s / 1000, value)) for s, value in enumerate(nscr)]
        return [run(*of, variant=variant, seed=s) for s, of in enumerate(points)]

    plain = runs("plain", 0.5, -0.2, -0.21, -0.19)
    others = [*runs("barely", 0.5, -0.02, 0.0, 0.05), *runs("significantly", 0.5, 0.1, 0.11, 0.12)]
    others += [*runs("costly", 0.3, 0.1, 0.11, 0.12), *runs("shifted", 0.5, 0.1, 0.11, 0.12, start=0.105)]
    verdicts = {v.name: v.verdict for v in analyze([*plain, *others]).variants}
    assert {name: (v.expands, v.expands_significantly) for name, v in verdicts.items()} == {
        "plain": (False, False),
        "barely": (True, False),
        "significantly": (True, True),
        "costly": (False, False),
        "shifted": (True, False),  # step 0, where nothing was learnt, shows as much
    }


def test_the_base_itself_seldom_expands_significantly():
    """One base pool for all runs, 360 answers hit or missed: the base compared with itself, a step 0 for each seed."""
    rng, pools = np.random.default_rng(0), 600
    hit = 1 - (1 - np.exp(rng.uniform(np.log(0.004), np.log(0.3), 360))) ** 64
    significant = naive = 0
    for _ in range(pools):
        base, *drawn = rng.random((11, 360)) < hit
        nscr = [(int(of.sum()) - int(base.sum())) / int((of | base).sum()) for of in drawn]
        runs = [run((0.3, nscr[2 * s]), (0.3, nscr[2 * s + 1]), seed=s) for s in range(5)]
        (plain,) = analyze(runs).variants
        significant += plain.verdict.expands_significantly
        naive += plain.estimates["nscr"].low >= 0
    assert significant / pools <= 0.025
    assert naive / pools > 0.1


def test_one_seed_gives_no_p_and_no_verdict_and_says_so(make_runs):
    analysis = analyze(make_runs({**CONTROLS, "good": (0.6, 0.3)}, 1, np.random.default_rng(0)))
    good = analysis.variants[-1]
    assert good.verdict.word == "open"
    assert "2 seeds" in good.verdict.why
    assert math.isnan(good.against["plain"]["nscr"].p)
    assert any("single seed" in text for text in analysis.warnings)


def test_seeds_are_paired_where_they_are_the_same_and_welch_is_taken_otherwise(make_runs):
    runs = make_runs({**CONTROLS, "a": (0.5, -0.1)}, 4, np.random.default_rng(0))
    methods = {m.against["plain"]["nscr"].method for m in analyze(runs).variants if "plain" in m.against}
    assert methods == {"paired"}
    fewer = [run for run in runs if (run.variant, run.seed) != ("a", 2)]
    *_, a = analyze(fewer).variants
    assert a.against["plain"]["nscr"].method == "welch"
    assert a.seeds == (0, 1, 3)
    shuffled = analyze(runs[::-1]).variants
    assert shuffled[0].name == "plain"
    assert {v.name: v.against for v in shuffled} == {v.name: v.against for v in analyze(runs).variants}


def run(*points, variant="plain", seed=0):
    series = tuple({"pass_at_1": p, "nscr": n} for p, n in points)
    return Measured(variant, seed, tuple(range(len(points))), series)


def test_early_stop_is_interpolated_on_a_rising_curve():
    plain = run((0.2, 0.0), (0.4, -0.1), (0.3, -0.3), (0.6, -0.4))  # rises as .2, .35, .35, .6
    assert at_equal_pass(plain, 0.3)["nscr"] == pytest.approx(-0.1 * 2 / 3)
    assert at_equal_pass(plain, 0.35)["nscr"] == pytest.approx(-0.3)
    assert at_equal_pass(plain, 0.4)["nscr"] == pytest.approx(-0.3 - 0.1 / 5)
    assert at_equal_pass(plain, 0.2)["nscr"] == 0.0
    assert at_equal_pass(plain, 0.6)["nscr"] == at_equal_pass(plain, 0.9)["nscr"] == -0.4
    assert at_equal_pass(plain, 0.1)["nscr"] == 0.0
    assert at_equal_pass(run((0.5, -0.1)), 0.3)["nscr"] == -0.1


def test_early_stop_finds_little_where_the_variant_is_plain():
    """Curves like the lab's, with noise. The first crossing would be off by .029, on half of the seeds."""
    rng = np.random.default_rng(0)
    mean = np.array([(0.351, 0.0), (0.43, -0.22), (0.452, -0.31), (0.458, -0.344)])
    runs = []
    for seed in range(1500):
        points = mean + rng.normal(0, (0.006, 0.02), (4, 2))
        last = mean[-1] + rng.normal(0, (0.006, 0.02))
        runs += [run(*points, seed=seed), run(points[0], last, variant="twin", seed=seed)]
    twin = analyze(runs).variants[1].early_stop
    assert twin.differences["nscr"].estimate.n == 1500
    assert -0.02 < twin.differences["nscr"].estimate.value <= 0


def test_a_variant_that_is_plain_stopped_early_shows_no_gain_over_it():
    plain = [run((0.2, 0.0), (0.4, -0.1), (0.6, -0.4), seed=s) for s in range(3)]
    early = [run((0.2, 0.0), (0.4, -0.1), variant="early", seed=s) for s in range(3)]
    beyond = [run((0.2, 0.0), (0.9, -0.1), variant="beyond", seed=s) for s in range(3)]
    _, one, two = analyze([*plain, *early, *beyond]).variants
    assert one.against["plain"]["nscr"].estimate.value == pytest.approx(0.3)
    assert one.early_stop.differences["nscr"].estimate.value == pytest.approx(0.0)
    assert one.early_stop.estimates["nscr"].n == 3
    assert two.early_stop.differences["nscr"].estimate.value == pytest.approx(0.3)
    assert two.early_stop.estimates["nscr"].n == 3


def test_other_last_steps_and_settings_without_effect_are_warned_of(make_runs):
    rng = np.random.default_rng(0)
    runs = make_runs({"plain": (0.5, -0.2)}, 2, rng)
    twins = [Measured("twin", r.seed, r.steps, r.series) for r in runs]
    short = [Measured("short", s, (70,), ({"pass_at_1": 0.4, "nscr": -0.1 * s},)) for s in range(2)]
    warnings = analyze([*runs, *twins, *short]).warnings
    assert any(text.startswith("twin ") for text in warnings)
    assert any("plain 100, twin 100, short 70" in text for text in warnings)


def test_budgets_that_differ_are_warned_of_and_steps_alone_are_not():
    def runs(variant, step, rollouts, base_samples=0):
        last = {"pass_at_1": 0.4, "nscr": -0.1}
        return [Measured(variant, s, (step,), (last,), rollouts, base_samples) for s in range(2)]

    equal = [*runs("plain", 100, 51200), *runs("two_updates", 200, 51200), *runs("dynamic", 40, 51712)]
    assert not any("rollouts" in text for text in analyze(equal).warnings)
    text = " ".join(analyze([*equal, *runs("long", 100, 60000), *runs("anchor", 100, 51200, 32768)]).warnings)
    assert "long 60,000" in text
    assert ": anchor 32,768" in text


def test_plain_is_needed(make_runs):
    with pytest.raises(ConfigError, match="plain"):
        analyze(make_runs({"a": (0.5, 0.0)}, 2, np.random.default_rng(0)))
