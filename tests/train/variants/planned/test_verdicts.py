"""Verdicts on simulated sweeps whose truth is known: calibrated, covering, and never an expansion that is a tilt."""

from typing import Any

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.exact_support import EPSILONS
from offleash.train.variants.planned.exact import ExactRun, outcomes
from offleash.train.variants.planned.verdicts import Trial, at_equal_pass, choose, judge
from offleash.train.variants.plans import RULE, Plan

EPS = 1e-3
E = EPSILONS.index(EPS)


def plan(stage="confirm", seeds=8, margin=0.01, controls=("plain",), variants=("new",), trials=1) -> Plan:
    return Plan(
        stage=stage,
        recipe="lab",
        problems={"split": "probe" if stage == "confirm" else "validation"},
        seeds=tuple(range(seeds)),
        settings={"monitor_exact": True},
        outcome={"nscr": EPS},
        margin=margin,
        choose=RULE,
        controls={arm: ({},) * trials for arm in controls},
        variants={arm: ({},) * trials for arm in variants},
    )


def sweep(lab: Any, arms: dict[str, Any], seeds: int = 8, controls=("plain",)) -> list[Trial]:
    """`arms`: name -> function that makes the policy of a run."""
    return [
        Trial(name, name, name in controls, {s: outcomes(lab.path(make(0.5), make(1.0))) for s in range(seeds)})
        for name, make in arms.items()
    ]


def plain_of(lab: Any, noise: float = 0.4) -> Any:
    def make(part: float) -> np.ndarray:
        shift = 0.1 * lab.rng.normal()  # a seed that learns more or less
        return lab.sharpened(part * (1.2 + shift), 1 + part * 0.6, part * noise)

    return make


def tilt_of(lab: Any, weight: float = 1.2, noise: float = 0.0) -> Any:
    return lambda part: lab.tilted(part * (weight + 0.1 * lab.rng.normal()), part * noise)


def by_arm(judged: Any) -> dict[str, Any]:
    return {arm.trial.arm: arm for arm in judged.arms}


def test_the_reweighting_is_never_said_to_expand_where_an_nscr_above_0_nearly_always_is(bandits):
    expands = above_0 = 0
    for trial in range(30):
        lab = bandits(np.random.default_rng(trial), 60)
        found = by_arm(judge(plan(), sweep(lab, {"plain": plain_of(lab), "new": tilt_of(lab)})))["new"]
        assert found.word in ("as good as reweighting", "expands")
        expands += found.word == "expands"
        above_0 += found.nscr_e[E].low > 0
    assert expands == 0
    assert above_0 >= 27


def test_what_loses_answers_shrinks_and_what_lifts_the_rare_ones_expands(bandits):
    lab = bandits(np.random.default_rng(0), 60)
    arms = {
        "plain": plain_of(lab),
        "flat": lambda part: lab.sharpened(1.2 * part, 1 - 0.3 * part, 0.1),  # towards all correct answers alike
        "costly": lambda part: lab.sharpened(-0.5 * part, 1 - 0.3 * part, 0.1),
    }
    found = by_arm(judge(plan(variants=("flat", "costly")), sweep(lab, arms)))
    assert found["plain"].word == "shrinks"
    assert found["flat"].word == found["costly"].word == "expands"
    assert found["flat"].reached > 0
    assert found["flat"].gap_e[E].low > 0
    assert (found["flat"].no_worse, found["costly"].no_worse) == (True, False)
    assert found["flat"].above == found["costly"].above == ("plain",)
    assert (found["flat"].is_better, found["costly"].is_better) == (True, False)


def test_where_nothing_differs_few_sweeps_claim_a_difference(bandits):
    """An arm with plain's own distribution; two-sided 95 %, so above in 2.5 %. And at a true loss of the margin."""
    above = no_worse = 0
    trials = 60
    for trial in range(trials):
        lab = bandits(np.random.default_rng(1000 + trial), 40)
        arms = sweep(lab, {"plain": plain_of(lab), "new": plain_of(lab)})
        lower = [run.pass_tg[-1, 0] for run in arms[0].runs.values()]
        higher = [run.pass_tg[-1, 0] for run in arms[1].runs.values()]
        truth = np.mean(lower) - np.mean(higher)
        found = by_arm(judge(plan(margin=0.0), arms))["new"]
        above += bool(found.above)
        no_worse += bool(found.no_worse)
        assert found.pass_difference.value == pytest.approx(-truth)
    assert above / trials <= 0.025 + 2 * np.sqrt(0.025 * 0.975 / trials)
    assert no_worse / trials <= 0.025 + 2 * np.sqrt(0.025 * 0.975 / trials)


def test_intervals_cover_the_truth_of_all_problems_and_seeds(bandits):
    """The truth: 4,000 problems. A t interval over seeds alone covers it in few sweeps."""

    def policy(lab: Any) -> Any:
        return outcomes(lab.path(plain_of(lab)(1.0)))

    whole = [policy(bandits(np.random.default_rng(seed), 4000)) for seed in range(5)]
    nscr, gap = (
        float(np.mean([value(run) for run in whole]))
        for value in (lambda r: r.nscr_tge[-1, 0, E], lambda r: r.nscr_tge[-1, 0, E] - r.line_ge[0, E])
    )
    covered = np.zeros(3)
    trials = 60
    for trial in range(trials):
        lab = bandits(np.random.default_rng(5000 + trial), 60)
        trial_runs = Trial("plain", "plain", True, {seed: policy(lab) for seed in range(8)})
        (found,) = judge(plan(), [trial_runs]).arms
        ends = np.array([run.nscr_tge[-1, 0, E] for run in trial_runs.runs.values()])
        half = 2.365 * ends.std(ddof=1) / np.sqrt(8)
        covered += [
            found.nscr_e[E].low <= nscr <= found.nscr_e[E].high,
            found.gap_e[E].low <= gap <= found.gap_e[E].high,
            abs(ends.mean() - nscr) <= half,
        ]
    assert (covered[:2] / trials >= 0.91).all()
    assert covered[2] / trials < 0.75


@pytest.mark.parametrize(("stage", "seeds"), [("confirm", 7), ("screen", 8)])
def test_fewer_than_eight_seeds_and_a_screen_claim_nothing(bandits, stage, seeds):
    lab = bandits(np.random.default_rng(0), 40)
    arms = {"plain": plain_of(lab), "new": lambda part: lab.sharpened(1.5 * part, 1 - 0.3 * part, 0.1)}
    for arm in judge(plan(stage, seeds), sweep(lab, arms, seeds)).arms:
        assert arm.word == "screened"
        assert arm.no_worse is None
        assert arm.above == ()
        assert not arm.is_better


def test_nothing_is_better_while_a_control_of_the_plan_is_missing_or_has_few_seeds(bandits):
    lab = bandits(np.random.default_rng(0), 60)
    arms = {
        "plain": plain_of(lab),
        "low_lr": lambda part: lab.sharpened(0.4 * part, 1 + 0.2 * part, 0.1),
        "new": lambda part: lab.sharpened(1.3 * part, 1 - 0.3 * part, 0.1),
    }
    controls = ("plain", "low_lr")
    of = plan(controls=controls)
    plain, low, new = sweep(lab, arms, controls=controls)
    found = by_arm(judge(of, [plain, low, new]))["new"]
    assert found.is_better
    assert found.short["low_lr"] > 0  # it stands at its highest pass@1
    assert found.short.keys() == {"low_lr"} or found.short["low_lr"] > found.short["plain"]
    few = Trial("low_lr", "low_lr", True, {seed: low.runs[seed] for seed in range(2)})
    none = Trial("low_lr", "low_lr", True, {})
    for known in ([plain, none, new], [plain, few, new]):
        found = by_arm(judge(of, known))["new"]
        assert found.above == ("plain",)
        assert not found.is_better


def test_a_control_that_the_plan_names_by_its_file_counts_by_the_name_of_its_arm(bandits):
    lab = bandits(np.random.default_rng(0), 60)
    arms = {
        "plain": plain_of(lab),
        "low_lr": lambda part: lab.sharpened(0.4 * part, 1 + 0.2 * part, 0.1),
        "new": lambda part: lab.sharpened(1.3 * part, 1 - 0.3 * part, 0.1),
    }
    trials = sweep(lab, arms, controls=("plain", "low_lr"))
    found = by_arm(judge(plan(controls=("plain", "/somewhere/low_lr.yaml")), trials))["new"]
    assert set(found.needed) == {"plain", "low_lr"}
    assert found.is_better


def test_the_distance_to_the_line_is_compared_with_plains(bandits):
    lab = bandits(np.random.default_rng(0), 60)
    found = by_arm(judge(plan(), sweep(lab, {"plain": plain_of(lab), "new": tilt_of(lab)})))
    assert found["plain"].gap_difference is None
    gaps = found["new"].gap_e[E].value - found["plain"].gap_e[E].value
    assert found["new"].gap_difference.value == pytest.approx(gaps)
    assert found["new"].gap_difference.low > 0


def test_a_seed_that_only_one_side_has_is_left_out_of_the_comparison(bandits):
    lab = bandits(np.random.default_rng(0), 40)
    ours, plain = sweep(lab, {"new": plain_of(lab), "plain": plain_of(lab)}, 9)
    plain = Trial("plain", "plain", True, {seed: plain.runs[seed] for seed in range(1, 9)})
    found = by_arm(judge(plan(seeds=9), [ours, plain]))
    assert found["new"].pass_difference.n == found["new"].differences["plain"].n == 8
    assert found["new"].nscr_e[E].n == 9
    assert found["new"].word != "screened"
    assert (
        by_arm(judge(plan(seeds=9), [ours, Trial("plain", "plain", True, {7: plain.runs[7]})]))["new"].word
        == "screened"
    )


def test_plain_stopped_early_is_not_above_plain_at_equal_pass(bandits):
    lab = bandits(np.random.default_rng(0), 40)
    (plain,) = sweep(lab, {"plain": plain_of(lab)})
    early = {seed: outcomes(lab.path(lab.sharpened(0.6, 1.3))) for seed in plain.runs}
    smooth = {
        s: outcomes(lab.path(*(lab.sharpened(1.2 * x, 1 + 0.6 * x) for x in (0.25, 0.5, 0.75, 1)))) for s in early
    }
    arms = [Trial("plain", "plain", True, smooth), Trial("new", "new", False, early)]
    found = by_arm(judge(plan(), arms))["new"]
    assert found.nscr_e[E].value > by_arm(judge(plan(), arms))["plain"].nscr_e[E].value + 0.05
    assert abs(found.differences["plain"].value) < 0.02
    assert found.no_worse is False


def test_a_run_that_never_got_there_stands_at_one_step_on_every_set_of_problems():
    pass_tg = np.array([[0.2, 0.2, 0.2], [0.4, 0.3, 0.5], [0.39, 0.31, 0.48]])
    nscr_tge = np.array([[0.0, 0.0, 0.0], [-0.1, -0.2, -0.3], [-0.6, -0.7, -0.8]])[:, :, None]
    run = ExactRun((0, 1, 2), pass_tg, nscr_tge, np.zeros((3, 1)), 0.0, *[np.zeros(1, dtype=np.int64)] * 3)
    assert at_equal_pass(run, np.array([0.45, 0.45, 0.45]), 0).tolist() == [-0.1, -0.2, -0.3]
    assert at_equal_pass(run, np.array([0.3, 0.25, 0.35]), 0) == pytest.approx([-0.05, -0.1, -0.15])


def test_means_along_a_run_are_of_the_steps_that_every_seed_measured(bandits):
    lab = bandits(np.random.default_rng(0), 20)
    runs = {s: outcomes(lab.path(lab.tilted(0.5), *[lab.tilted(1.0)] * s)) for s in (1, 2)}
    along = Trial("plain", "plain", True, runs).along(EPS)
    assert [step for step, *_ in along] == list(runs[1].steps)
    assert along[0][2] == 0.0
    assert along[1][1] == pytest.approx(np.mean([run.pass_tg[1, 0] for run in runs.values()]))


def test_trials_are_chosen_by_the_rule_of_the_plan(bandits):
    lab = bandits(np.random.default_rng(0), 40)

    def trial(name, arm, log_weight, power):
        run = outcomes(lab.path(lab.sharpened(log_weight, power)))
        return Trial(name, arm, arm in ("plain", "equal_samples"), {0: run, 1: run})

    plain = [trial("plain", "plain", 1.0, 0.8), trial("plain.2", "plain", 1.2, 1.6)]
    chosen = choose(plan("screen"), plain, None)
    assert chosen.name == "plain.2"  # the highest pass@1, whatever it lost
    low = trial("a", "new", 0.5, 0.7)  # the highest outcome, at too low a pass@1
    keeps, loses = trial("b", "new", 1.2, 0.9), trial("c", "new", 1.4, 1.5)
    assert choose(plan("screen"), [low, keeps, loses], chosen).name == "b"
    assert choose(plan("screen"), [low, trial("d", "new", 0.8, 1.2)], chosen).name == "d"  # none reaches plain
    more = [trial("equal_samples", "equal_samples", 1.3, 0.9), trial("equal_samples.2", "equal_samples", 1.6, 1.9)]
    assert choose(plan("screen"), more, chosen).name == "equal_samples.2"
    judged = judge(plan("screen", trials=2), [*plain, low, keeps, loses])
    assert [arm.trial.name for arm in judged.arms] == ["plain.2", "b"]


def test_variants_are_in_the_order_of_the_rule_and_share_one_error_rate(bandits):
    lab = bandits(np.random.default_rng(0), 40)
    arms = {"plain": plain_of(lab), **{f"v{i}": plain_of(lab) for i in range(4)}}
    judged = judge(plan(variants=tuple(f"v{i}" for i in range(4))), sweep(lab, arms))
    assert judged.confidence == pytest.approx(1 - 0.05 / 4)
    passes = [arm.passed.value >= judged.arms[0].passed.value - 0.01 for arm in judged.variants]
    assert passes == sorted(passes, reverse=True)


def test_plain_is_needed(bandits):
    lab = bandits(np.random.default_rng(0), 5)
    with pytest.raises(ConfigError, match="plain"):
        judge(plan(), sweep(lab, {"new": plain_of(lab)}, 1))
