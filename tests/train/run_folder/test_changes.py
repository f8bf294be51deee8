"""A run is continued under the settings it was begun with: what changed is named, and refused unless it was allowed."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from offleash.eval.errors import ConfigError
from offleash.train.explorers.loss.reference_reset import ReferenceReset
from offleash.train.grpo import train
from offleash.train.recipe.config import Recipe, parse_recipe, save_resolved
from offleash.train.run_folder.changes import (
    LAUNCH,
    RESOLVED,
    Launch,
    changes,
    check_same_launch,
    check_unchanged,
    launch_of,
    read_launch,
    save_launch,
)
from offleash.train.run_folder.checkpoints import Choice
from offleash.train.run_folder.folder import begin

TINY = {
    "train_args": '{"split": "train", "n": 16}',
    "probe_args": '{"split": "probe", "n": 4}',
    "monitor_exact": "false",
    "per_device_train_batch_size": "8",
    "num_generations": "4",
    "max_steps": "2",
    "save_steps": "1",
    "monitor_every": "2",
    "monitor_k": "4",
    "monitor_score_k": "4",
    "monitor_batch_size": "16",
    "use_cpu": "true",
    "disable_tqdm": "true",
}


def recipe_in(folder: Path, *words: str, **settings: Any) -> Recipe:
    flags = {**TINY, "output_dir": str(folder), **settings}
    return parse_recipe(["--config", "lab", *(w for k, v in flags.items() for w in (f"--{k}", str(v))), *words])


def begun(folder: Path, *words: str, measured: bool = False, **settings: Any) -> Path:
    """A folder as a run with these settings leaves it."""
    recipe = recipe_in(folder, *words, **settings)
    # As build_trainer does.
    recipe.training.model_init_kwargs = {"revision": "main", "attn_implementation": None, "dtype": "float32"}
    save_resolved(recipe, folder / RESOLVED)
    if measured:
        (folder / "support.json").write_text("{}")
    return folder


def told(folder: Path, *words: str, **settings: Any) -> list[str]:
    return [str(change) for change in changes(recipe_in(folder, *words, **settings), folder)]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, {"max_steps": 9}, ["max_steps was 2, now 9"]),
        ({"beta": 0.01}, {"beta": 0.02, "seed": 5}, ["beta was 0.01, now 0.02", "seed was 0, now 5"]),
        ({}, {"train_args": '{"split": "train", "n": 17}'}, ["train_args.n was 16, now 17"]),
        ({}, {"top_p": 0.5, "min_p": 0.1}, ["min_p was unset, now 0.1", "top_p was 1.0, now 0.5"]),
        ({}, {"model_init_kwargs": '{"use_cache": true}'}, ["model_init_kwargs.use_cache was unset, now true"]),
        ({}, {"model_name_or_path": "someone/model"}, ['model_name_or_path was "lab", now "someone/model"']),
    ],
)
def test_a_changed_key_is_named_with_both_values(tmp_path, before, now, expected):
    assert told(begun(tmp_path, **before), **now) == expected


def test_an_explorers_argument_is_named_and_a_default_that_is_written_out_is_no_change(tmp_path):
    folder = begun(tmp_path, "--explorer", "pass_at_k", "--explorer.k", "4")
    assert told(folder, "--explorer", "pass_at_k", "--explorer.k", "8") == ["explorer.pass_at_k.k was 4, now 8"]
    assert told(folder) == ["explorer.pass_at_k.k was 4, now unset"]
    folder = begun(tmp_path, "--explorer", "identity", "focal")
    assert told(folder, "--explorer", "identity", "focal", "--explorer.gamma", "0.5") == []
    assert told(folder, "--explorer", "focal") == ["explorer.identity was {}, now unset"]
    assert told(folder, "--explorer", "focal", "identity") == [
        'explorer was ["identity", "focal"], now ["focal", "identity"]'
    ]


def test_what_depends_on_the_machine_or_cannot_change_the_run_is_no_change(tmp_path, monkeypatch):
    folder = begun(tmp_path / "a")
    saved = yaml.safe_load((folder / RESOLVED).read_text())
    saved |= {
        "model_name_or_path": "/another/venv/lib/python3.12/site-packages/offleash/recipes/lab/base",
        "local_rank": 1,
        "output_dir": "runs/elsewhere",
        "dataloader_pin_memory": True,
    }
    (folder / RESOLVED).write_text(yaml.safe_dump(saved))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    free = {"report_to": "none", "logging_steps": 5, "save_steps": 3, "hub_model_id": "me/mine", "save_total_limit": 7}
    assert told(folder, "--resume", **free) == []


def test_a_key_that_the_saved_recipe_lacks_was_at_its_default(tmp_path):
    folder = begun(tmp_path)
    saved = yaml.safe_load((folder / RESOLVED).read_text())
    for newer in ("explorer", "guards", "loss_type", "top_k", "monitor_score_k"):
        del saved[newer]
    (folder / RESOLVED).write_text(yaml.safe_dump({**saved, "a_key_of_long_ago": 3}))
    assert told(folder, monitor_score_k=16) == []
    assert told(folder, monitor_score_k=16, loss_type="bnpo") == ['loss_type was "dapo", now "bnpo"']


def test_allow_lets_through_what_it_names_and_nothing_else(tmp_path):
    folder = begun(tmp_path, "--explorer", "pass_at_k", "--explorer.k", "4")
    other = ("--explorer", "pass_at_k", "--explorer.k", "2")
    check_unchanged(recipe_in(folder, *other, "--resume", "--allow", "max_steps", "explorer", max_steps=9), folder)
    with pytest.raises(ConfigError, match=r"explorer.pass_at_k.k was 4, now 2\.") as caught:
        check_unchanged(recipe_in(folder, *other, "--resume", "--allow", "max_steps", max_steps=9), folder)
    assert str(caught.value).endswith("--allow explorer.pass_at_k.k")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"--allow.* max_step$"):
        check_unchanged(recipe_in(folder, "--resume", "--allow", "max_step"), folder)
    with pytest.raises(ConfigError, match="add --resume"):
        recipe_in(folder, "--allow", "max_steps")


@pytest.mark.parametrize(
    ("key", "value", "why"), [("learning_rate", 1e-3, "optimizer"), ("monitor_k", 8, "measurements")]
)
def test_what_would_not_take_effect_or_not_compare_cannot_be_allowed(tmp_path, key, value, why):
    folder = begun(tmp_path, measured=True)
    (folder / "checkpoint-1").mkdir()
    with pytest.raises(ConfigError, match=f"{key} was .*{key} cannot change .*{why}") as caught:
        check_unchanged(recipe_in(folder, "--resume", "--allow", key, **{key: value}), folder)
    assert "--allow" not in str(caught.value)


def test_before_the_first_measurement_the_monitor_may_be_set_otherwise_by_permission(tmp_path):
    folder = begun(tmp_path, monitor_every=0)
    with pytest.raises(ConfigError, match="--allow monitor_every monitor_k"):
        check_unchanged(recipe_in(folder, "--resume", monitor_k=8), folder)
    words = ("--resume", "--allow", "monitor_k", "monitor_every")
    check_unchanged(recipe_in(folder, *words, monitor_k=8), folder)


def test_another_sharding_is_refused_by_name_and_cannot_be_allowed(tmp_path):
    folder = begun(tmp_path)
    now = launch_of(recipe_in(folder).training)
    assert now == Launch("none", "no", 1, None)
    check_same_launch(recipe_in(folder), folder)  # of an older Offleash, which saved no launch
    save_launch(now, folder)
    check_same_launch(recipe_in(folder), folder)
    save_launch(now._replace(sharding="zero3", processes=2), folder)
    with pytest.raises(ConfigError, match=r'sharding was "zero3", now "none"\. .*accelerate config'):
        check_same_launch(recipe_in(folder, "--resume", "--allow", "sharding"), folder)
    save_launch(now._replace(precision="fp8"), folder)
    with pytest.raises(ConfigError, match=r'precision was "fp8", now "no"\. .*--allow precision'):
        check_same_launch(recipe_in(folder), folder)
    check_same_launch(recipe_in(folder, "--resume", "--allow", "precision"), folder)


@pytest.mark.long
def test_changed_training_problems_are_refused_unless_they_or_their_arguments_are_allowed(tmp_path, capsys):
    folder = begun(tmp_path)
    begin(recipe_in(folder), folder, Choice(None), "aaaa")
    assert read_launch(folder).train_problems == "aaaa"
    checkpoint = folder / "checkpoint-1"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text("{}")
    before = (folder / LAUNCH).read_bytes()
    with pytest.raises(ConfigError, match=r'train_problems .* was "aaaa", now "bbbb"\. .*--allow train_problems'):
        begin(recipe_in(folder, "--resume"), folder, Choice(checkpoint), "bbbb")
    assert (folder / LAUNCH).read_bytes() == before
    allowed = recipe_in(folder, "--resume", "--allow", "train_problems")
    check_unchanged(allowed, folder)
    begin(allowed, folder, Choice(checkpoint), "bbbb")
    assert "from step 1 on, train_problems" in capsys.readouterr().out
    fewer = recipe_in(folder, "--resume", "--allow", "train_args", train_args='{"split": "train", "n": 8}')
    begin(fewer, folder, Choice(checkpoint), "cccc")
    assert read_launch(folder).train_problems == "cccc"


@pytest.mark.long
def test_a_real_run_is_refused_as_changed_and_trains_on_as_allowed_from_another_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")  # restored afterwards: train() sets it
    folder = tmp_path / "runs" / "one"
    train(recipe_in(folder, lr_scheduler_type="constant"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    moved = folder.rename(tmp_path / "elsewhere" / "moved")
    (tmp_path / "runs" / "base-pools").rename(tmp_path / "elsewhere" / "base-pools")
    assert train(recipe_in(Path("moved"), "--resume", lr_scheduler_type="constant")) is None
    assert read_launch(moved)[:3] == ("none", "no", 1)
    (moved / LAUNCH).unlink()  # as an older Offleash left it
    before = (moved / RESOLVED).read_bytes()
    with pytest.raises(ConfigError, match=r"max_steps was 2, now 3.*--allow max_steps"):
        train(recipe_in(Path("moved"), "--resume", max_steps=3, lr_scheduler_type="constant"))
    assert (moved / RESOLVED).read_bytes() == before
    capsys.readouterr()
    words = ("--resume", "--allow", "max_steps")
    trainer = train(recipe_in(Path("moved"), *words, max_steps=3, lr_scheduler_type="constant"))
    assert trainer is not None
    assert trainer.state.global_step == 3
    assert "from step 2 on, max_steps was 2, now 3" in capsys.readouterr().out
    assert yaml.safe_load((moved / RESOLVED).read_text())["max_steps"] == 3
    assert (moved / "recipe-to-step-000002.yaml").read_bytes() == before
    assert set(json.loads((moved / "support.json").read_text())["steps"]) == {"0", "2", "3"}


@pytest.mark.long
def test_an_explorer_with_a_state_cannot_join_a_run_that_has_none_of_it(make_trainer, tmp_path):
    settings = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 8}
    make_trainer("run", [], **settings).train()
    joined = make_trainer("run", [ReferenceReset(every=1)], **settings)
    with pytest.raises(ConfigError, match="ReferenceReset"):
        joined.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))


@pytest.mark.long
def test_a_resumed_run_keeps_its_learning_rate_and_takes_the_schedule_of_a_new_length(make_trainer, tmp_path):
    """Why one can never be allowed to change and the other can, if the Trainer (transformers 5.17) stays as it is."""
    settings = {"save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 8}
    settings["lr_scheduler_type"] = "linear"
    make_trainer("run", [], max_steps=2, learning_rate=1e-3, **settings).train()
    longer = make_trainer("run", [], max_steps=5, learning_rate=1e-2, **settings)
    longer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    rates = [row["learning_rate"] for row in longer.state.log_history if row["step"] > 1 and "reward" in row]
    # The checkpoint's optimizer also brings the rate of its next step.
    assert rates == pytest.approx([1e-3 * share for share in (1 / 2, 3 / 5, 2 / 5, 1 / 5)])


def test_a_probe_task_is_compared_and_its_default_is_the_task(tmp_path):
    folder = begun(tmp_path / "run")
    assert changes(recipe_in(folder, probe_task="countdown"), folder) == []
    with pytest.raises(ConfigError, match='probe_task was unset, now "change"'):
        check_unchanged(recipe_in(folder, probe_task="change"), folder)
    with pytest.raises(ConfigError, match="rewards was"):
        check_unchanged(recipe_in(folder, "--rewards", "verifier", "format"), folder)
