"""`offleash train` as a program: the launcher is not seen, an error is one line, the status is that of training."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from offleash.train.accelerate_launch import main, reported
from offleash.train.commands.train import launch_command
from offleash.train.preflight.launch import processes_asked
from offleash.train.run_folder.checkpoints import choose_checkpoint

TWO = ["--config_file", "recipes/accelerate/cpu_two_processes.yaml", "--main_process_port", "0"]
SMALL = [
    *("--config", "lab", "--train_args", '{"split": "train", "n": 16}', "--per_device_train_batch_size", "8"),
    *("--probe_args", '{"split": "probe", "n": 4, "strict": true}', "--num_generations", "4", "--monitor_every", "1"),
    *("--monitor_k", "4", "--monitor_score_k", "4", "--use_cpu", "true", "--disable_tqdm", "true", "--save_steps", "2"),
]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "offleash", "train", *words]


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(command(*words), cwd=folder, capture_output=True, text=True, timeout=600)
    # vLLM says this where it was built for a CPU and Triton came with it.
    told = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith("Triton is installed, but")]
    done.stderr = "".join(told)
    return done


@pytest.mark.parametrize(
    ("codes", "status"),
    [
        ([2], 2),
        ([2, -15], 2),
        ([-15, 2], 2),  # the launcher's clock ticks in seconds: who was first is not always known
        ([1, 2], 2),  # the others fail because one is gone
        ([130, 1], 130),
        ([1, -15], 1),
        ([7], 7),
        ([-9, 1], 137),
        ([-15], 143),
    ],
)
def test_the_status_is_ours_or_that_of_the_process_that_failed_first(codes, status):
    assert reported(codes) == status


@pytest.mark.long
def test_a_process_that_was_killed_is_told_in_a_line(capsys):
    reported([-9])
    assert capsys.readouterr().err.splitlines() == [
        "offleash: error: a training process was killed by SIGKILL (out of memory?): add --resume to continue"
    ]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--num_processes", "x"], "--num_processes"),
        (["--no_such_option", "-m", "offleash.train"], "--no_such_option"),
        (["--config_file", "no-such-file.yaml", "-m", "offleash.train"], "no-such-file.yaml"),
    ],
)
def test_what_the_launcher_refuses_is_one_line_and_status_2(words, named, capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    monkeypatch.setenv("OFFLEASH_SAID", "")
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "")
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert named in err


def test_its_command_line_tells_training_how_many_processes_were_asked_for():
    """Accelerate may start fewer than that, which is refused."""
    assert processes_asked(launch_command(["--num_processes", "3", "--config", "lab"])) == 3


@pytest.mark.parametrize("launcher", [[], pytest.param(TWO, marks=pytest.mark.slow)], ids=["one", "two"])
def test_an_error_is_one_line_with_status_2_on_any_number_of_processes(tmp_path, launcher):
    done = run(tmp_path, *launcher, *SMALL, "--max_stepz", "3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "offleash: error: unknown key as a flag: max_stepz (did you mean max_steps?)\n"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [[], TWO], ids=["one", "two"])
def test_a_run_says_nothing_but_its_own_lines(tmp_path, launcher):
    done = run(tmp_path, *launcher, *SMALL, "--max_steps", "2", "--output_dir", "run")
    assert done.returncode == 0
    assert done.stderr == ""
    steps = [line for line in done.stdout.splitlines() if line.startswith("offleash: step ")]
    assert len(steps) == 3
    assert max(map(len, steps)) <= 165
    assert all("solutions lost" in line and "noise" in line and "SRR" not in line for line in steps)
    shown = subprocess.run(
        [sys.executable, "-m", "offleash", "compare", "run", "--quiet", "--resamples", "20"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "step-000002" in shown.stdout


@pytest.fixture
def training(tmp_path):
    """Two processes that would train for long, and have saved a checkpoint in `run`; what they say is in log.txt."""
    with (tmp_path / "log.txt").open("w") as log:
        words = command(*TWO, *SMALL, "--max_steps", "5000", "--output_dir", "run", "--monitor_every", "0")
        process = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    try:
        while not (tmp_path / "run" / "checkpoint-2" / "trainer_state.json").exists():
            assert process.poll() is None, (tmp_path / "log.txt").read_text()
            time.sleep(0.1)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_two_processes_that_are_interrupted_or_asked_to_end_save_one_checkpoint(tmp_path, training, number):
    if number == signal.SIGINT:
        os.killpg(training.pid, number)  # as the terminal does
    else:
        training.send_signal(number)
    assert training.wait(timeout=120) == 130
    text = (tmp_path / "log.txt").read_text()
    assert "Traceback" not in text
    saved = choose_checkpoint(tmp_path / "run").checkpoint
    assert saved is not None
    line = f"offleash: interrupted; {saved.name} is saved: add --resume to continue"
    assert text.count(line) == 1


@pytest.mark.slow
def test_a_second_sigterm_ends_two_processes_that_do_not_answer(training):
    children = psutil.Process(training.pid).children(recursive=True)
    ranks = [child for child in children if "offleash.train" in child.cmdline()]
    assert len(ranks) == 2
    for rank in ranks:
        rank.suspend()
    training.send_signal(signal.SIGTERM)
    time.sleep(2)
    assert training.poll() is None
    training.send_signal(signal.SIGTERM)
    time.sleep(1)
    for rank in ranks:
        rank.resume()
    assert training.wait(timeout=120) in (130, 143)
    assert not any(rank.is_running() for rank in ranks)
