"""Ctrl-C: one line, a checkpoint, and the resumed run is the one that was not interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator

from offleash.train.grpo import train
from offleash.train.recipe.config import Recipe, parse_recipe
from offleash.train.rewards import VerifierReward
from offleash.train.run_folder.checkpoints import checkpoints, choose_checkpoint

pytestmark = pytest.mark.long

SMALL = {
    "train_args": '{"split": "train", "n": 16}',
    "per_device_train_batch_size": "8",
    "num_generations": "4",
    "learning_rate": "5e-4",
    "max_steps": "6",
    "save_steps": "100",
    "monitor_every": "0",
    "use_cpu": "true",
    "disable_tqdm": "true",
}


def words(folder: Path, *more: str, **settings: Any) -> list[str]:
    flags = {**SMALL, "output_dir": str(folder), **settings}
    return ["--config", "lab", *(w for k, v in flags.items() for w in (f"--{k}", str(v))), *more]


def recipe_in(folder: Path, *more: str, **settings: Any) -> Recipe:
    return parse_recipe(words(folder, *more, **settings))


@pytest.fixture
def interrupt_rollout(monkeypatch):
    """Ctrl-C while the rewards of the n-th rollout are computed."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")  # restored afterwards: train() sets it
    plain = VerifierReward.__call__

    def arm(number: int, times: int = 1) -> None:
        calls = []

        def rewarded(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(None)
            if len(calls) == number:
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)
            return plain(self, *args, **kwargs)

        monkeypatch.setattr(VerifierReward, "__call__", rewarded)

    yield arm
    monkeypatch.setattr(VerifierReward, "__call__", plain)


@pytest.mark.parametrize(
    ("settings", "rollout", "saved"),
    [
        ({}, 2, 2),
        # Three updates for each rollout: the checkpoint waits for the last of them.
        ({"num_iterations": 3, "save_steps": 99}, 1, 3),
    ],
)
def test_an_interrupted_run_saves_a_checkpoint_and_continues_on_its_trajectory(
    tmp_path, interrupt_rollout, capfd, settings, rollout, saved
):
    train(recipe_in(tmp_path / "whole", **settings))
    before = signal.getsignal(signal.SIGINT)
    interrupt_rollout(rollout)
    with pytest.raises(KeyboardInterrupt, match=f"checkpoint-{saved} is saved"):
        train(recipe_in(tmp_path / "cut", **settings))
    assert signal.getsignal(signal.SIGINT) is before
    assert "saving a checkpoint after this step" in capfd.readouterr().err
    assert [path.name for path in checkpoints(tmp_path / "cut")] == [f"checkpoint-{saved}"]
    assert not (tmp_path / "cut" / "final").exists()
    interrupt_rollout(99)
    train(recipe_in(tmp_path / "cut", "--resume", **settings))
    whole, cut = (tmp_path / name / "final" / "model.safetensors" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()


def test_a_second_interrupt_ends_the_run_at_once(tmp_path, interrupt_rollout, monkeypatch):
    monkeypatch.setattr("offleash.train.interrupt.ONE_SIGNAL", 0.0)
    interrupt_rollout(2, times=2)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        train(recipe_in(tmp_path / "run"))
    assert checkpoints(tmp_path / "run") == []


def test_one_interrupt_that_comes_twice_is_one(tmp_path, interrupt_rollout):
    interrupt_rollout(2, times=2)
    with pytest.raises(KeyboardInterrupt, match="checkpoint-2 is saved"):
        train(recipe_in(tmp_path / "run"))


def test_no_process_leaves_an_interrupted_run_before_its_checkpoint_is_sealed(tmp_path, interrupt_rollout, monkeypatch):
    """The launcher ends the main process, which seals it, as soon as another one has ended."""
    order: list[str] = []
    monkeypatch.setattr(Accelerator, "wait_for_everyone", lambda self: order.append("wait"))
    monkeypatch.setattr("offleash.train.trainer.seal", lambda folder: order.append("seal"))
    interrupt_rollout(1)
    with pytest.raises(KeyboardInterrupt, match="checkpoint-1 is saved"):
        train(recipe_in(tmp_path / "run"))
    assert order[order.index("seal") - 1 :] == ["wait", "seal", "wait"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_at_the_terminal_and_a_scheduler_s_wish_reach_training_through_the_launcher(tmp_path, number):
    """The terminal sends the signal to the launcher as well, which must neither die first nor print a traceback."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "offleash.train.cli", "train", *words(folder, max_steps=5000, save_steps=2)]
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env={**os.environ})
    try:
        while not (folder / "checkpoint-2" / "trainer_state.json").exists():
            assert process.poll() is None, (tmp_path / "log.txt").read_text()
            time.sleep(0.05)
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        assert process.wait(timeout=120) == 130
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    lines = (tmp_path / "log.txt").read_text().splitlines()
    saved = choose_checkpoint(folder).checkpoint
    assert saved is not None
    assert lines[-1] == f"offleash: interrupted; {saved.name} is saved: add --resume to continue"
    assert not [line for line in lines if "Traceback" in line]
