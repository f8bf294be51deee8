"""A sweep without a plan: seeds are paired, plain is stopped early, and what is not comparable is told."""

import math

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.train.variants.analysis import analyze, at_equal_pass
from offleash.train.variants.results import Measured

CONTROLS = {"plain": (0.5, -0.2), "placebo": (0.5, -0.2), "low_lr": (0.5, -0.2)}


def test_a_single_seed_gives_no_p_and_says_so(make_runs):
    analysis = analyze(make_runs({**CONTROLS, "good": (0.6, 0.3)}, 1, np.random.default_rng(0)))
    assert math.isnan(analysis.variants[-1].against_plain["nscr"].p)
    assert any("single seed" in text for text in analysis.warnings)


def test_seeds_are_paired_where_they_are_the_same_and_welch_is_taken_otherwise(make_runs):
    runs = make_runs({**CONTROLS, "a": (0.5, -0.1)}, 4, np.random.default_rng(0))
    methods = {m.against_plain["nscr"].method for m in analyze(runs).variants if m.against_plain}
    assert methods == {"paired"}
    fewer = [run for run in runs if (run.variant, run.seed) != ("a", 2)]
    *_, a = analyze(fewer).variants
    assert a.against_plain["nscr"].method == "welch"
    assert a.seeds == (0, 1, 3)
    shuffled = analyze(runs[::-1]).variants
    assert shuffled[0].name == "plain"
    assert {v.name: v.against_plain for v in shuffled} == {v.name: v.against_plain for v in analyze(runs).variants}


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
    assert one.against_plain["nscr"].estimate.value == pytest.approx(0.3)
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
