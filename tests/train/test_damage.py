"""Files of a run that were lost or garbled: a resume ends where an undisturbed run does, or is refused in one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from offleash.eval.errors import ConfigError
from offleash.train import Explorer
from offleash.train.grpo import train
from offleash.train.recipe.config import Recipe, parse_recipe
from offleash.train.run_folder.checkpoints import checkpoints

pytestmark = pytest.mark.long

STEPS = 4
SMALL = {
    "train_args": '{"split": "train", "n": 16}',
    "probe_args": '{"split": "probe", "n": 4}',
    "monitor_exact": "false",
    "per_device_train_batch_size": "8",
    "num_generations": "4",
    "learning_rate": "5e-4",
    "max_steps": STEPS,
    "save_steps": "1",
    "save_total_limit": "100",
    "monitor_every": "2",
    "monitor_k": "4",
    "monitor_score_k": "4",
    "monitor_batch_size": "16",
    "use_cpu": "true",
    "disable_tqdm": "true",
}


def recipe_in(folder: Path, *words: str, **settings: Any) -> Recipe:
    flags = {**SMALL, "output_dir": str(folder), **settings}
    return parse_recipe(["--config", "lab", *(w for k, v in flags.items() for w in (f"--{k}", str(v))), *words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORBOARD_LOGGING_DIR", "")  # restored afterwards: train() sets it
        train(recipe_in(folder))
    return folder


@pytest.fixture
def run(finished, tmp_path, monkeypatch) -> Path:
    """A copy of the finished run."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")
    shutil.copytree(finished.parent, tmp_path / "runs")
    return tmp_path / "runs" / "run"


def cut_short(run: Path, last: int = 3) -> Path:
    """As if it had been killed after this step."""
    shutil.rmtree(run / "final")
    for path in checkpoints(run)[last:]:
        shutil.rmtree(path)
    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights(run: Path) -> bytes:
    return (run / "final" / "model.safetensors").read_bytes()


# Nothing that was finished is lost


def test_a_finished_run_without_its_checkpoints_is_done_and_stays_byte_for_byte(run, capsys):
    for path in checkpoints(run):
        shutil.rmtree(path)
    before = contents(run)
    assert train(recipe_in(run, "--resume")) is None
    assert "already finished" in capsys.readouterr().out
    assert contents(run) == before


@pytest.mark.parametrize("words", [(), ("--allow", "max_steps")])
def test_with_other_settings_it_is_refused_and_stays_byte_for_byte(run, words):
    for path in checkpoints(run):
        shutil.rmtree(path)
    before = contents(run)
    with pytest.raises(ConfigError, match=f"max_steps was {STEPS}, now 9"):
        train(recipe_in(run, "--resume", *words, max_steps=9))
    assert contents(run) == before


@pytest.mark.parametrize("garbled", [False, True])
def test_a_measured_run_without_checkpoints_and_final_model_is_not_started_over(run, garbled):
    for path in [*checkpoints(run), run / "final"]:
        shutil.rmtree(path)
    if garbled:
        (run / "support.json").write_text('{"steps":')
    before = contents(run)
    with pytest.raises(
        ConfigError, match=r"support\.json cannot be read" if garbled else f"measured up to step {STEPS}"
    ):
        train(recipe_in(run, "--resume"))
    assert contents(run) == before


def test_a_run_killed_after_a_measurement_and_before_its_first_checkpoint_starts_over(run, finished):
    for path in [*checkpoints(run), run / "final"]:
        shutil.rmtree(path)
    record = json.loads((run / "support.json").read_text())
    (run / "support.json").write_text(json.dumps({**record, "steps": {"0": record["steps"]["0"]}}))
    assert train(recipe_in(run, "--resume")) is not None
    assert weights(run) == weights(finished)


@pytest.mark.parametrize("what", ["final", "support.json"])
def test_without_resume_a_folder_with_only_a_final_model_or_measurements_is_not_used(run, tmp_path, what):
    (tmp_path / "other").mkdir()
    (run / what).rename(tmp_path / "other" / what)
    with pytest.raises(ConfigError, match="contains a run"):
        train(recipe_in(tmp_path / "other"))


def test_a_run_that_saves_by_a_fraction_is_not_started_over_without_its_checkpoints(run):
    for path in [*checkpoints(run), run / "final"]:
        shutil.rmtree(path)
    saved = yaml.safe_load((run / "recipe.yaml").read_text())
    (run / "recipe.yaml").write_text(yaml.safe_dump({**saved, "save_steps": 0.25}))
    before = contents(run)
    with pytest.raises(ConfigError, match=f"measured up to step {STEPS}"):
        train(recipe_in(run, "--resume", save_steps=0.25))
    assert contents(run) == before


def test_a_finished_run_that_was_continued_and_killed_at_its_end_does_not_keep_the_former_model(run, monkeypatch):
    former = weights(run)

    def die(*args: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("offleash.train.grpo.save_model", die)
        with pytest.raises(SystemExit):
            train(recipe_in(run, "--resume", "--allow", "max_steps", max_steps=STEPS + 2))
    assert (run / "final.former" / "model.safetensors").read_bytes() == former
    assert train(recipe_in(run, "--resume", max_steps=STEPS + 2)) is None
    assert weights(run) == (run / f"checkpoint-{STEPS + 2}" / "model.safetensors").read_bytes() != former
    assert not (run / "final.former").exists()


def test_the_former_model_of_a_continued_run_without_checkpoints_stays(run):
    (run / "final").rename(run / "final.former")
    for path in checkpoints(run):
        shutil.rmtree(path)
    (run / "support.json").unlink()
    before = contents(run)
    with pytest.raises(ConfigError, match=r"final\.former is the model it had"):
        train(recipe_in(run, "--resume"))
    assert contents(run) == before


# The recipe is always compared


@pytest.mark.parametrize("text", ["", "{}", "null", "\x00", None])
def test_an_emptied_or_missing_recipe_does_not_skip_the_comparison(run, text):
    path = cut_short(run) / "recipe.yaml"
    path.unlink() if text is None else path.write_text(text)
    before = contents(run)
    with pytest.raises(ConfigError, match=r"recipe\.yaml|task was unset"):
        train(recipe_in(run, "--resume", beta="0.5"))
    assert contents(run) == before


def test_a_garbled_launch_record_is_named_and_can_be_removed(run, finished):
    (cut_short(run) / "launch.json").write_text('{"sharding": ')
    with pytest.raises(ConfigError, match=r"launch\.json"):
        train(recipe_in(run, "--resume"))
    (run / "launch.json").unlink()
    train(recipe_in(run, "--resume"))
    assert weights(run) == weights(finished)


# A damaged checkpoint


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("name", ["scheduler.pt", "optimizer.pt", "rng_state.pth", "model.safetensors"])
def test_a_checkpoint_that_lacks_a_file_is_passed_over_and_the_run_ends_as_undisturbed(
    run, finished, name, sealed, capsys
):
    cut_short(run)
    if not sealed:
        for path in checkpoints(run):
            (path / "checksums.json").unlink()
    (run / "checkpoint-3" / name).unlink()
    train(recipe_in(run, "--resume"))
    out = capsys.readouterr().out
    assert "checkpoint-3 is damaged" in out
    assert "continuing from" in out
    assert "checkpoint-2 (" in out
    assert weights(run) == weights(finished)
    assert (run / "damaged-1-checkpoint-3").is_dir()


def test_a_checkpoint_under_the_name_of_another_step_is_not_taken(run, finished, capsys):
    cut_short(run)
    (run / "checkpoint-3").rename(run / "checkpoint-9")
    train(recipe_in(run, "--resume"))
    assert "checkpoint-9 is damaged (its trainer_state.json is not that of this step)" in capsys.readouterr().out
    assert weights(run) == weights(finished)


class _Stateful(Explorer):
    def load(self, folder: Path) -> None:
        raise FileNotFoundError(folder)


def test_nothing_is_trimmed_or_removed_for_a_checkpoint_that_does_not_load(run):
    cut_short(run, last=2)
    (run / "checkpoint-9").mkdir()  # incomplete, and would be removed
    before = contents(run)
    words = ("--resume", "--allow", "explorer", "--explorer", f"{__name__}:_Stateful")
    with pytest.raises(ConfigError, match="_Stateful"):
        train(recipe_in(run, *words))
    assert contents(run) == before
    assert (run / "checkpoint-9").exists()


# Other files


def garble_record(run: Path) -> None:
    (run / "support.json").write_bytes(b'{"k": 4, "steps": {"0": \xff')


def garble_record_as_json(run: Path) -> None:
    (run / "support.json").write_text('{"steps": ["none"]}')


def garble_stop(run: Path) -> None:
    (run / "stopped.json").write_text("}{")


def garble_events(run: Path) -> None:
    (path,) = run.glob("events*")
    data = bytearray(path.read_bytes())
    data[300:330] = bytes(30)
    path.write_bytes(data)


def add_foreign_folders(run: Path) -> None:
    for name in ("pools/step-notes", "checkpoint-best", "tensorboard/mine/events.out.tfevents.mine", "final.part/rest"):
        (run / name).mkdir(parents=True)


@pytest.mark.parametrize(
    "harm", [garble_record, garble_record_as_json, garble_stop, garble_events, add_foreign_folders]
)
def test_a_garbled_or_foreign_file_does_not_block_a_resume(run, finished, harm: Callable[[Path], None], read_scalars):
    harm(cut_short(run))
    train(recipe_in(run, "--resume"))
    assert weights(run) == weights(finished)
    assert not (run / "final.part").exists()
    shutil.rmtree(run / "tensorboard" / "mine", ignore_errors=True)  # which TensorBoard itself cannot read
    steps = [step for step, _ in read_scalars(run)["train/reward"]]
    assert steps[-2:] == [3, 4] if harm is garble_events else steps == [1, 2, 3, 4]
    record = json.loads((run / "support.json").read_text())
    assert "4" in record["steps"]
    if harm in (garble_record, garble_record_as_json):
        assert (run / "damaged-1-support.json").exists()


def test_what_is_left_of_an_unfinished_export_is_removed_when_a_finished_run_is_resumed(run, finished):
    (run / "final").rename(run / "final.part")
    assert train(recipe_in(run, "--resume")) is None
    assert not (run / "final.part").exists()
    assert weights(run) == weights(finished)


def test_a_run_that_a_rule_stopped_stays_stopped_if_the_rules_record_is_garbled(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")
    train(recipe_in(tmp_path / "run", guards="out >= 0"))
    (tmp_path / "run" / "stopped.json").write_text("")
    assert train(recipe_in(tmp_path / "run", "--resume", guards="out >= 0")) is None
    assert "a rule (stopped.json cannot be read) stopped it" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["max_steps"] == STEPS
