"""A plan is read strictly, stored with its hash, and only grows once runs have begun."""

import json
import re

import pytest
import yaml

from offleash.eval.errors import ConfigError
from offleash.train.commands.variants import main
from offleash.train.recipe.config import parse_recipe
from offleash.train.variants.plans import RULE, planned_runs, read_plan, record_plan, stored_plans
from offleash.train.variants.runs import record_start

SCREEN = {
    "stage": "screen",
    "recipe": "lab",
    "problems": {"split": "validation", "n": 16},
    "seeds": [0, 1],
    "settings": {"max_steps": 100, "monitor_exact": True, "use_cpu": True},
    "outcome": {"nscr": 1e-3},
    "margin": 0.01,
    "choose": RULE,
    "controls": {"plain": [{}, {"scale": {"learning_rate": 2}}], "low_lr": [{}, {"scale": {"learning_rate": 2}}]},
    "variants": {"focal": [{}, {"explorer": {"focal": {"gamma": 4.0}}}]},
}


@pytest.fixture
def write(tmp_path):
    def written(**changed):
        path = tmp_path / "plan.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in {**SCREEN, **changed}.items() if v is not None}))
        return path

    return written


def test_every_trial_of_every_arm_is_run_with_its_own_settings(tmp_path, write):
    runs = planned_runs(read_plan(write()), tmp_path / "out")
    names = ["plain", "plain.2", "low_lr", "low_lr.2", "focal", "focal.2"]
    assert [run.overlay.name for run in runs] == names * 2
    assert [run.overlay.arm for run in runs[:6]] == ["plain", "plain", "low_lr", "low_lr", "focal", "focal"]
    assert [run.overlay.is_control for run in runs[:6]] == [True] * 4 + [False] * 2
    recipes = {run.overlay.name: parse_recipe(run.words) for run in runs[:6]}
    rates = {name: recipe.training.learning_rate for name, recipe in recipes.items()}
    rate = rates["plain"]
    assert rates == pytest.approx(
        {**dict.fromkeys(names, rate), "plain.2": 2 * rate, "low_lr": 0.3 * rate, "low_lr.2": 0.6 * rate}
    )
    assert recipes["focal.2"].run.explorers == {"focal": {"gamma": 4.0}}
    assert {recipe.training.max_steps for recipe in recipes.values()} == {100}
    recipe = parse_recipe(["--config", "lab", "--use_cpu", "true"])
    assert recipes["plain"].run.probe_task_args == {**recipe.run.probe_task_args, "split": "validation", "n": 16}
    assert runs[1].folder == tmp_path / "out" / "plain.2" / "seed-0"


def test_equal_samples_gives_plain_the_rollouts_that_the_hungriest_arm_takes_in_all(tmp_path, write):
    hungry = {"anchor": [{}, {"explorer": {"anchor": {"problems": 1024, "k": 64}}}]}
    with pytest.raises(ConfigError, match=r"anchor\.2 takes 78,336"):  # 100 steps of 128, and 1,024 x 64 base samples
        planned_runs(read_plan(write(variants=hungry, equal_samples=78335)), tmp_path / "out")
    runs = planned_runs(read_plan(write(variants=hungry, equal_samples=78336)), tmp_path / "out")
    found = {run.overlay.name: parse_recipe(run.words).training for run in runs if run.overlay.arm == "equal_samples"}
    assert {name: training.max_steps for name, training in found.items()} == {
        "equal_samples": 612,
        "equal_samples.2": 612,
    }
    assert found["equal_samples.2"].learning_rate == 2 * found["equal_samples"].learning_rate


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"stage": "tune"}, "stage"),
        ({"outcome": {"pass_at_1": 1}}, "outcome"),
        ({"outcome": {"nscr": 2e-3}}, "outcome"),
        ({"problems": {"split": "probe"}}, "validation"),
        ({"stage": "confirm"}, "probe"),
        ({"stage": "confirm", "problems": {"split": "probe"}}, "one trial"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [1, 1]}, "seeds"),
        ({"seeds": 8}, "seeds"),
        ({"margin": -1}, "margin"),
        ({"choose": "the one I like"}, "choose"),
        ({"settings": {"max_steps": 5}}, "monitor_exact"),
        ({"settings": {"monitor_exact": True, "probe_args": {}}}, "probe_args"),
        ({"controls": {"low_lr": [{}, {}]}}, "plain"),
        ({"controls": {"plain": [{}]}}, "plain has 1 trials and focal 2"),
        ({"variants": {"low_lr": [{}, {}]}}, "low_lr"),
        ({"variants": {"high_lr": [{}, {}]}}, "high_lr"),
        ({"variants": {"equal_samples": [{}, {}]}}, "equal_samples"),
        ({"variants": {"focal": {}}}, "focal"),
        ({"equal_samples": "many"}, "equal_samples"),
        ({"outcomes": 1}, "unknown key 'outcomes'"),
        ({"margin": None}, "lacks margin"),
    ],
)
def test_a_plan_that_is_none_is_refused_by_the_key(write, changed, told):
    with pytest.raises(ConfigError, match=f"plan.yaml: .*{re.escape(told)}"):
        read_plan(write(**changed))


def test_a_plan_only_grows_once_a_run_has_begun(tmp_path, write):
    out = tmp_path / "out"
    record_plan(read_plan(write(margin=0.02)), out)
    first = read_plan(write())
    assert len(record_plan(first, out)) == 1  # nothing has begun: another plan may take its place
    record_start(planned_runs(first, out)[0])
    assert record_plan(first, out)[-1]["sha256"] == first.sha256
    more = {**SCREEN["variants"], "pkpo": [{}, {}]}
    grown = read_plan(write(variants=more, seeds=[0, 1, 2]))
    versions = record_plan(grown, out)
    assert [version["sha256"] for version in versions] == [first.sha256, grown.sha256]
    assert versions == stored_plans(out) == json.loads((out / "plan.json").read_text())
    assert versions[0]["plan"]["variants"] == SCREEN["variants"]
    for changed in (
        {"outcome": {"nscr": 1e-4}},
        {"margin": 0.02},
        {"seeds": [0, 2]},
        {"variants": {"pkpo": [{}, {}]}},
        {"variants": {**more, "focal": [{}, {"explorer": {"focal": {"gamma": 8.0}}}]}},
        {"problems": {"split": "validation", "n": 17}},
        {"settings": {**SCREEN["settings"], "max_steps": 101}},
    ):
        with pytest.raises(ConfigError, match=f"{next(iter(changed)).rstrip('s')}.*begun"):
            record_plan(read_plan(write(**{"variants": more, "seeds": [0, 1, 2], **changed})), out)
    assert stored_plans(out) == versions


def test_a_confirmation_gets_no_further_seeds_once_a_run_has_begun(tmp_path, write):
    changed = {"stage": "confirm", "problems": {"split": "probe"}, "seeds": list(range(8))}
    arms = {key: {arm: trials[:1] for arm, trials in SCREEN[key].items()} for key in ("controls", "variants")}
    first, out = read_plan(write(**changed, **arms)), tmp_path / "out"
    record_plan(first, out)
    record_start(planned_runs(first, out)[0])
    with pytest.raises(ConfigError, match=r"a confirmation's seeds were .*begun"):
        record_plan(read_plan(write(**{**changed, "seeds": list(range(9))}, **arms)), out)


def test_a_damaged_record_of_the_plan_is_named(tmp_path):
    (tmp_path / "plan.json").write_text("[{")
    with pytest.raises(ConfigError, match=r"plan\.json is damaged"):
        stored_plans(tmp_path)


def test_the_hash_is_of_the_content_not_of_its_spelling(tmp_path, write):
    first = read_plan(write()).sha256
    path = write()
    path.write_text("# a comment\n" + yaml.safe_dump(SCREEN, sort_keys=True, default_flow_style=True))
    assert read_plan(path).sha256 == first
    assert read_plan(write(margin=0.011)).sha256 != first


def test_planned_and_other_sweeps_do_not_share_a_folder(tmp_path, write):
    words = ["--config", "lab", "--explorers", "focal", "--out", str(tmp_path / "out"), "--report-only"]
    record_plan(read_plan(write()), tmp_path / "out")
    with pytest.raises(ConfigError, match="--plan"):
        main(words)
    (tmp_path / "other" / "plain" / "seed-0").mkdir(parents=True)
    (tmp_path / "other" / "plain" / "seed-0" / "asked.json").write_text("{}")
    with pytest.raises(ConfigError, match="without a plan"):
        main(["--plan", str(write()), "--out", str(tmp_path / "other")])
    with pytest.raises(ConfigError, match="--explorers"):
        main(["--plan", str(write()), "--out", str(tmp_path / "out"), "--explorers", "focal"])
    with pytest.raises(ConfigError, match="--plan"):
        main(["--out", str(tmp_path / "out")])


def test_an_arm_may_be_an_explorer_of_ones_own(tmp_path, write, monkeypatch):
    name = f"arm_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "from offleash.train import Explorer\n\n"
        "class Safe(Explorer):\n    def __init__(self, weight: float = 0.1) -> None:\n        self.weight = weight\n"
    )
    monkeypatch.chdir(tmp_path)
    arm = f"{name}:Safe{{weight: 0.2}}"
    trials = [{"beta": 0.5}, {"explorer": {f"{name}:Safe": {"weight": 0.4}}}]
    runs = planned_runs(read_plan(write(variants={arm: trials})), tmp_path / "out")
    recipes = {run.overlay.name: parse_recipe(run.words) for run in runs[:6]}
    assert [run.overlay.arm for run in runs[4:6]] == ["Safe_weight-0.2"] * 2
    assert recipes["Safe_weight-0.2"].run.explorers == {f"{name}:Safe": {"weight": 0.2}}
    assert recipes["Safe_weight-0.2"].training.beta == 0.5
    assert recipes["Safe_weight-0.2.2"].run.explorers == {f"{name}:Safe": {"weight": 0.4}}
    (tmp_path / f"{name}_b.py").write_text((tmp_path / f"{name}.py").read_text())
    twins = {f"{name}:Safe": [{}, {}], f"{name}_b:Safe": [{}, {}]}
    with pytest.raises(ConfigError, match="two arms of the plan are called 'Safe'"):
        planned_runs(read_plan(write(variants=twins)), tmp_path / "twins")
