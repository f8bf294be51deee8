"""Two runs in one folder would overwrite each other's checkpoints and pools."""

import os
from pathlib import Path

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.lock import hold
from offleash.train.grpo import train
from offleash.train.recipe.config import parse_recipe
from offleash.train.run_folder.folder import events_folder


def test_a_folder_is_held_once_until_it_is_let_go(tmp_path: Path) -> None:
    lock = hold(tmp_path / "run", "taken")
    with pytest.raises(ConfigError, match="taken"):
        hold(tmp_path / "run", "taken")
    os.close(lock)
    os.close(hold(tmp_path / "run", "taken"))


def test_a_second_run_in_a_folder_is_refused_before_it_touches_anything(tmp_path: Path) -> None:
    recipe = parse_recipe(["--config", "lab", "--use_cpu", "true", "--output_dir", str(tmp_path / "run"), "--resume"])
    lock = hold(tmp_path / "run", "taken")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="another process is training in"):
        train(recipe)
    assert sorted(tmp_path.rglob("*")) == before
    os.close(lock)


def test_event_files_are_in_the_folder_whose_name_tensorboard_shows_and_former_runs_keep_their_place(
    tmp_path: Path,
) -> None:
    assert events_folder(tmp_path) == tmp_path
    (tmp_path / "tensorboard" / "mine").mkdir(parents=True)
    assert events_folder(tmp_path) == tmp_path  # somebody's own folder
    (tmp_path / "tensorboard" / "events.out.tfevents.1.host").touch()
    assert events_folder(tmp_path) == tmp_path / "tensorboard"
