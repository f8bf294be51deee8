import sys
from dataclasses import fields

import pytest
from accelerate.commands.launch import launch_command_parser
from trl import GRPOConfig, ModelConfig

from offleash.eval.errors import ConfigError
from offleash.train.commands import train
from offleash.train.commands.train import launch_command, main
from offleash.train.recipe.catalogue import RECIPES
from offleash.train.recipe.config import RunConfig

LAUNCHER = [sys.executable, "-m", "offleash.train.accelerate_launch"]
TRAINING = ["-m", "offleash.train"]


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["--config", "lab"], [*LAUNCHER, *TRAINING, "--config", "lab"]),
        (["--", "--help"], [*LAUNCHER, *TRAINING, "--help"]),
        (
            ["--dynamo_backend", "no", "--", "--config", "lab", "--seed", "1"],
            [*LAUNCHER, "--dynamo_backend", "no", *TRAINING, "--config", "lab", "--seed", "1"],
        ),
        (
            ["--config", "lab", "--num_processes", "2", "--gpu_ids=0,1", "--seed", "1"],
            [*LAUNCHER, "--num_processes", "2", "--gpu_ids=0,1", *TRAINING, "--config", "lab", "--seed", "1"],
        ),
    ],
)
def test_launcher_options_and_what_precedes_two_dashes_go_to_the_launcher_and_the_rest_to_training(argv, command):
    assert launch_command(argv) == command


def test_no_launcher_option_is_a_key_of_a_recipe():
    keys = {field.name for kind in (RunConfig, GRPOConfig, ModelConfig) for field in fields(kind)}
    assert keys & {option.removeprefix("--") for option in train.LAUNCHER} == set()
    launcher = {text for action in launch_command_parser()._actions for text in action.option_strings}
    assert set(train.LAUNCHER) <= launcher


def test_the_process_becomes_the_launcher(monkeypatch):
    run = []
    monkeypatch.setattr("os.execv", lambda program, command: run.append((program, command)))
    main(["--config", "lab", "--resume"])
    assert run == [(sys.executable, [*LAUNCHER, *TRAINING, "--config", "lab", "--resume"])]


def test_help_explains_where_options_go(capsys):
    assert main(["--help"]) == 0
    assert "--config_file" in capsys.readouterr().out


def test_a_launcher_config_that_ships_with_offleash_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "recipes/accelerate/one_gpu.yaml"
    assert launch_command(["--config_file", name])[3:5] == ["--config_file", str(RECIPES / "accelerate/one_gpu.yaml")]
    assert launch_command([f"--config_file={name}"])[3:5] == ["--config_file", str(RECIPES / "accelerate/one_gpu.yaml")]
    (tmp_path / "recipes" / "accelerate").mkdir(parents=True)
    (tmp_path / name).write_text("")
    assert launch_command(["--config_file", name])[4] == name


def test_a_recipe_that_is_not_there_is_refused_before_the_launcher_starts():
    with pytest.raises(ConfigError, match="labb"):
        launch_command(["--config", "lab", "--config=labb"])
