"""The plans that ship: readable, complete, and of runs that can be trained."""

from pathlib import Path

import pytest

from offleash import recipes
from offleash.train.variants.plans import CLAIM_SEEDS, CONFIRM, SCREEN, planned_runs, read_plan

VARIANTS = Path(recipes.__path__[0]) / "variants"
ALL = sorted((VARIANTS / "plans").glob("*.yaml"))
FOLLOW_UPS = [path for path in ALL if path.stem.startswith("followup_")]
PLANS = [path for path in ALL if path not in FOLLOW_UPS]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_is_what_its_name_says(path):
    plan = read_plan(path)
    assert path.stem in (f"{plan.stage}_{plan.recipe}", f"{plan.stage}2_{plan.recipe}")
    assert {"plain", "low_lr", "high_lr", "high_beta", "two_updates", "placebo"} == set(plan.controls)
    assert plan.stage == SCREEN or len(plan.seeds) >= CLAIM_SEEDS


@pytest.mark.parametrize("path", [path for path in PLANS if path.stem.startswith(SCREEN)], ids=lambda path: path.stem)
def test_a_screen_has_every_variant_and_control_that_ships(path):
    plan = read_plan(path)
    assert {*plan.controls, *plan.variants} == {"plain", *(overlay.stem for overlay in VARIANTS.glob("*.yaml"))}


def test_screens_and_confirmations_differ_only_in_what_they_must():
    plans = {path.stem: read_plan(path) for path in PLANS}
    screens, confirmations = ([p for p in plans.values() if p.stage == stage] for stage in (SCREEN, CONFIRM))
    assert len(confirmations) == 3
    assert {plan.recipe for plan in screens} == {plan.recipe for plan in confirmations}
    runs = [{**plan.settings, "monitor_every": None} for plan in plans.values()]  # a path needs more points than an end
    assert all(settings == runs[0] for settings in runs)
    assert len({(plan.eps, plan.margin, plan.equal_samples) for plan in plans.values()}) == 1
    assert not {seed for p in screens for seed in p.seeds} & {seed for p in confirmations for seed in p.seeds}


@pytest.mark.parametrize("path", [path for path in PLANS if "2_" in path.stem], ids=lambda path: path.stem)
def test_a_second_screen_has_other_seeds_and_one_of_the_trials_of_the_first(path):
    first, second = read_plan(path.with_stem(path.stem.replace("2_", "_"))), read_plan(path)
    assert not set(first.seeds) & set(second.seeds)
    for arm, trials in {**second.controls, **second.variants}.items():
        (trial,) = trials
        assert trial in {**first.controls, **first.variants}[arm]


@pytest.mark.parametrize("path", FOLLOW_UPS, ids=lambda path: path.stem)
def test_a_follow_up_differs_from_its_confirmation_in_its_arms_alone(path):
    ours, confirmed = read_plan(path), read_plan(path.with_stem(path.stem.replace("followup", CONFIRM)))
    for name in ("stage", "recipe", "problems", "seeds", "settings", "outcome", "margin"):
        assert getattr(ours, name) == getattr(confirmed, name)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_every_run_of_a_plan_can_be_trained(path, tmp_path):
    plan = read_plan(path)
    arms = len(plan.controls) + len(plan.variants) + (plan.equal_samples is not None)
    runs = planned_runs(plan, tmp_path / "out")
    assert len(runs) == arms * len(plan.controls["plain"]) * len(plan.seeds)
