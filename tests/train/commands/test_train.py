import sys

import pytest

from offleash.train.commands.train import launch_command, main

LAUNCHER = [sys.executable, "-m", "accelerate.commands.launch"]
TRAINING = ["-m", "offleash.train"]


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["--config", "lab"], [*LAUNCHER, *TRAINING, "--config", "lab"]),
        (["--", "--help"], [*LAUNCHER, *TRAINING, "--help"]),
        (
            ["--num_processes", "2", "--", "--config", "lab", "--seed", "1"],
            [*LAUNCHER, "--num_processes", "2", *TRAINING, "--config", "lab", "--seed", "1"],
        ),
    ],
)
def test_options_before_two_dashes_go_to_the_launcher_and_the_others_to_training(argv, command):
    assert launch_command(argv) == command


def test_the_process_becomes_the_launcher(monkeypatch):
    run = []
    monkeypatch.setattr("os.execv", lambda program, command: run.append((program, command)))
    main(["--config", "lab", "--resume"])
    assert run == [(sys.executable, [*LAUNCHER, *TRAINING, "--config", "lab", "--resume"])]


def test_help_explains_where_options_go(capsys):
    assert main(["--help"]) == 0
    assert "--config_file" in capsys.readouterr().out
