"""What a sweep is made of, and what it refuses before anything runs."""

import json
from pathlib import Path

import pytest

from offleash.eval.errors import ConfigError
from offleash.train.commands.variants import main
from offleash.train.recipe.config import parse_recipe
from offleash.train.variants.overlays import ANY_PROCESSES, find_overlays
from offleash.train.variants.results import read_sweep
from offleash.train.variants.runs import (
    ASKED,
    asked_of,
    check_runs,
    check_unchanged,
    left_out,
    make_runs,
    record_failure,
    record_start,
)

BASE = "task: countdown\nmodel_name_or_path: lab\nlearning_rate: 1.0e-4\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "base.yaml").write_text(f"{BASE}output_dir: elsewhere\n")
    (tmp_path / "hot.yaml").write_text("learning_rate: 2.0e-3\n")
    (tmp_path / "low_lr.yaml").write_text("learning_rate: 3.0e-5\n")
    (tmp_path / "guided.yaml").write_text("explorer: {pass_at_k: {k: 4}}\n")
    return tmp_path


def make(files, names=("hot.yaml",), seeds=(0, 1), extra=()):
    overlays = find_overlays([str(files / name) for name in names])
    runs = make_runs([files / "base.yaml"], overlays, seeds, files / "out", extra)
    check_runs(runs)
    return runs


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("monitor_every: 0\n", "hotter .*monitor_every"),
        ("temperature: 1.5\n", r"hotter changes temperature from 1.0 to 1.5"),
        ('probe_args: {"n": 3}\n', "hotter changes probe_args"),
        ("epsilon_high: 0.28\n", "hotter: epsilon_high"),
    ],
)
def test_what_would_not_be_measured_as_plain_is_or_does_nothing_is_refused(files, text, told):
    (files / "hotter.yaml").write_text(text)
    with pytest.raises(ConfigError, match=told):
        make(files, ("hotter.yaml",))


def test_a_run_whose_last_measurement_failed_has_no_result(files):
    runs = make(files)[:2]
    for run in runs:
        record_start(run)
        measured(run.folder, "/pools/one", 0.4)
    (runs[1].folder / "checkpoint-20").mkdir()
    assert [run.has_ended for run in runs] == [True, False]
    assert "log.txt" in read_sweep(runs).missing["hot seed 0"]


def test_other_seeds_in_the_folder_are_told_of(files):
    first, second = make(files, seeds=(0, 1)), make(files, seeds=(1, 2))
    for run in first:
        record_start(run)
    assert left_out(first, files / "out") == []
    assert left_out(second, files / "out")[0].endswith("hot seed-0, plain seed-0")


def test_plain_comes_first_and_every_seed_is_finished_before_the_next(files):
    runs = make(files, ("hot.yaml", "guided.yaml"), (100, 101))
    names = ["plain", "hot", "guided"]
    assert [run.name for run in runs] == [f"{name} seed {seed}" for seed in (100, 101) for name in names]
    assert runs[1].folder == files / "out" / "hot" / "seed-100"
    assert make(files, ("hot.yaml",))[0].overlay.name == "plain"


def test_the_training_command_understands_the_words(files):
    run = make(files, extra=("--use_cpu", "true", "--bf16", "false"))[3]
    recipe = parse_recipe(run.words)
    assert recipe.training.learning_rate == 2e-3
    assert recipe.training.seed == 1
    assert recipe.training.output_dir == str(run.folder)
    assert recipe.run.monitor_base_pools == str(files / "out" / "base-pools")
    assert recipe.run.resume


def test_an_unknown_name_two_of_one_name_and_a_file_without_keys_are_refused(files):
    with pytest.raises(ConfigError, match="'nothing'"):
        find_overlays(["nothing"])
    (files / "other").mkdir()
    (files / "other" / "hot.yaml").write_text("beta: 0.1\n")
    with pytest.raises(ConfigError, match="'hot'"):
        find_overlays([str(files / "hot.yaml"), str(files / "other" / "hot.yaml")])
    (files / "empty.yaml").write_text("# nothing\n")
    with pytest.raises(ConfigError, match=r"empty\.yaml"):
        find_overlays([str(files / "empty.yaml")])
    (files / "tensorboard.yaml").write_text("beta: 0.1\n")
    with pytest.raises(ConfigError, match="'tensorboard'"):
        find_overlays([str(files / "tensorboard.yaml")])


@pytest.mark.parametrize("word", ["--seed", "--output_dir=x", "--explorer", "--explorer.k", "--config"])
def test_flags_that_the_sweep_decides_are_refused(files, word):
    with pytest.raises(ConfigError, match=word.partition("=")[0]):
        make(files, extra=(word, "1"))


def test_a_flag_that_would_undo_a_variant_is_refused(files):
    with pytest.raises(ConfigError, match=r"--learning_rate .* hot"):
        make(files, extra=("--learning_rate", "1e-3"))


def test_a_recipe_with_an_explorer_is_no_plain(files):
    (files / "base.yaml").write_text("explorer: {focal: {}}\n")
    with pytest.raises(ConfigError, match=r"base.yaml .*`explorer`"):
        make(files)


def test_changed_settings_are_refused_and_named(files):
    first = make(files)[1]
    record_start(first)
    check_unchanged(make(files)[1])
    (files / "hot.yaml").write_text("learning_rate: 3.0e-3\n")
    with pytest.raises(ConfigError, match=r"overlay.learning_rate was 0.002, now 0.003"):
        check_unchanged(make(files)[1])
    (files / "hot.yaml").write_text("learning_rate: 2.0e-3\n")
    with pytest.raises(ConfigError, match="flags was"):
        check_unchanged(make(files, extra=("--max_steps", "5"))[1])
    (files / "base.yaml").write_text(f"{BASE}output_dir: another\n")
    check_unchanged(make(files)[1])  # the sweep sets output_dir itself


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("broken", "learning_rat: 1.0e-3\n", "broken .*learning_rat"),
        ("broken", "explorer: {nope: {}}\n", "broken .*nope"),
        ("broken", "explorer: {pass_at_k: {kk: 4}}\n", "broken .*kk"),
        ("broken", "explorer: {pass_at_k: {k: 16}}\n", "broken .*16"),
        ("low_lr", "learning_rate: 1.0e-4\n", "low_lr has learning_rate 0.0001"),
        ("low_lr", "beta: 0.1\n", "low_lr has learning_rate 0.0001"),
        ("high_lr", "learning_rate: 3.0e-5\n", "high_lr has learning_rate 3e-05"),
        ("two_updates", "steps_per_generation: 1\n", "two_updates has updates per rollout 1"),
        ("clip_higher", "epsilon_high: 0.28\n", "clip_higher: epsilon_high"),
        ("high_beta", "beta: 0.0\n", "high_beta has beta 0.* high_beta.yaml"),
    ],
)
def test_a_broken_variant_and_a_control_that_is_none_are_refused_before_anything_runs(files, name, text, told):
    (files / f"{name}.yaml").write_text(text)
    with pytest.raises(ConfigError, match=told):
        make(files, ("hot.yaml", f"{name}.yaml"))


def test_a_batch_that_only_many_processes_share_is_left_to_the_launcher(files):
    (files / "base.yaml").write_text(f"{BASE}per_device_train_batch_size: 1\nnum_generations: 8\n")
    with pytest.raises(ConfigError, match="plain"):
        make(files)
    overlays = find_overlays([str(files / "hot.yaml")])
    runs = make_runs([files / "base.yaml"], overlays, [0], files / "out")
    assert list(check_runs(runs, ANY_PROCESSES)) == ["plain", "hot"]


def test_a_run_tells_the_settings_it_was_begun_with(files):
    run = make(files, ("guided.yaml",))[1]
    record_start(run)
    (files / "guided.yaml").write_text("explorer: {pass_at_k: {k: 2}}\n")
    assert asked_of(make(files, ("guided.yaml",))[1]) == {"explorer": {"pass_at_k": {"k": 4}}}


def test_a_trial_s_settings_are_over_those_of_its_overlay_and_factors_multiply(files):
    run = make(files, ("guided.yaml",))[1]
    overlay = {"explorer": {"pass_at_k": {"k": 4}}, "scale": {"learning_rate": 8}}
    trial = {"explorer": {"pass_at_k": {"k": 2}}, "scale": {"learning_rate": 0.125, "beta": 2}}
    told = {f"overlay.{key}": value for key, value in (overlay | {f"trial.{k}": v for k, v in trial.items()}).items()}
    run.folder.mkdir(parents=True)
    (run.folder / ASKED).write_text(json.dumps(told))
    assert asked_of(run) == {"explorer": {"pass_at_k": {"k": 2}}, "scale": {"learning_rate": 1, "beta": 2}}


def test_a_report_of_other_settings_is_refused(files):
    for run in make(files, ("guided.yaml",)):
        record_start(run)
        measured(run.folder, "/pools/one", 0.4)
    words = ["--config", str(files / "base.yaml"), "--explorers", str(files / "guided.yaml"), "--seeds", "2"]
    words += ["--out", str(files / "out"), "--report-only"]
    (files / "guided.yaml").write_text("explorer: {pass_at_k: {k: 2}}\n")
    with pytest.raises(ConfigError, match="explorer"):
        main(words)
    assert not (files / "out" / "report.json").exists()


def test_a_folder_of_something_else_is_refused(files):
    run = make(files)[0]
    run.folder.mkdir(parents=True)
    (run.folder / "recipe.yaml").write_text("x")
    with pytest.raises(ConfigError, match=str(run.folder)):
        check_unchanged(run)


def measured(folder: Path, pool: str, passed: float) -> None:
    metrics = {"pass_at_k/1": passed, "support/unit/nscr": -0.1, "support/unit/ndr": None}
    record = {"k": 12, "token_entropy": "entropy/token_T1", "base_pool": pool, "base": {"pass_at_k/8": 0.5}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "support.json").write_text(json.dumps({**record, "steps": {"0": metrics, "10": metrics, "9": metrics}}))
    (folder / "final").mkdir()


def test_ended_runs_are_read_and_the_others_are_named_with_their_reason(files):
    runs = make(files)
    for run in runs[:2]:
        measured(run.folder, "/pools/one", 0.4)
    record_start(runs[2])
    record_failure(runs[2], 2, ["first", "offleash: error: no such key"])
    sweep = read_sweep(runs)
    assert [run.steps for run in sweep.runs] == [(0, 9, 10)] * 2
    assert sweep.runs[0].last["pass_at_1"] == 0.4
    assert sweep.runs[0].last["ndr"] != sweep.runs[0].last["ndr"]
    assert sweep.base["pass_at_top"] == 0.5
    assert sweep.missing == {
        "plain seed 1": "failed with status 2: offleash: error: no such key",
        "hot seed 1": "not started",
    }


def test_runs_measured_against_other_pools_are_not_compared(files):
    runs = make(files)
    for run, pool in zip(runs[:2], ("/pools/one", "/pools/two"), strict=True):
        measured(run.folder, pool, 0.4)
    with pytest.raises(ConfigError, match=r"plain seed 0 .* one .*hot seed 0 .* two"):
        read_sweep(runs)
    with pytest.raises(ConfigError, match="no run"):
        read_sweep(runs[2:])


OWN = """
from offleash.train import Explorer

class Safe(Explorer):
    def __init__(self, weight: float = 0.1) -> None:
        self.weight = weight

    def advantages(self, rollouts, advantages_pg):
        return advantages_pg * self.weight

class placebo(Safe):
    pass

class Broken(Safe):
    def advantages(self, rollouts, advantages_pg):
        return advantages_pg.sum(1)
"""


@pytest.fixture
def own(files, monkeypatch):
    """A module of explorers in the working directory."""
    name = f"own_{files.name.replace('-', '_')}"
    (files / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(files)
    return name


def test_an_explorer_of_ones_own_is_a_variant_by_its_path_with_and_without_arguments(files, own):
    names = [f"{own}:Safe", f"{own}:Safe{{weight: 0.2}}", str(files / "hot.yaml")]
    overlays = find_overlays(names, files / "out")
    assert [overlay.name for overlay in overlays] == ["plain", "Safe", "Safe_weight-0.2", "hot"]
    assert not any(overlay.is_control for overlay in overlays[1:])
    runs = make_runs([files / "base.yaml"], overlays, [0], files / "out")
    recipes = check_runs(runs)
    assert recipes["Safe"].run.explorers == {f"{own}:Safe": {}}
    assert recipes["Safe_weight-0.2"].run.explorers == {f"{own}:Safe": {"weight": 0.2}}
    assert runs[2].folder == files / "out" / "Safe_weight-0.2" / "seed-0"
    assert runs[2].asked["overlay.explorer"] == {f"{own}:Safe": {"weight": 0.2}}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("{own}:Safe{{weight}}", "weight"),
        ("{own}:Safe{{weight: 0.2", "mapping"),
        ("{own}:Safe{{wait: 0.2}}", "wait"),
        ("{own}:Nothing", "Nothing"),
        ("{own}:placebo", "'placebo'.*rename"),
        ("{own}:Broken", r"Broken cannot be trained: .*advantages must return .*one group, all correct"),
        ("nowhere_at_all:Safe", "nowhere_at_all"),
        ("focal{{gamma: 4}}", "focal"),
    ],
)
def test_an_explorer_that_cannot_be_used_is_refused_before_anything_runs(files, own, name, told):
    words = ["--config", str(files / "base.yaml"), "--out", str(files / "out"), "--explorers", name.format(own=own)]
    with pytest.raises(ConfigError, match=told):
        main(words)


def test_the_task_of_the_probe_problems_is_the_same_for_all_variants(files):
    (files / "hotter.yaml").write_text("probe_task: change\n")
    with pytest.raises(ConfigError, match="hotter changes probe_task from 'countdown' to 'change'"):
        make(files, ("hotter.yaml",))
    (files / "hotter.yaml").write_text("probe_task: countdown\nbeta: 0.1\n")
    make(files, ("hotter.yaml",))
