"""Observers that fail in a real run: training goes on as if they were not there, and says so."""

import errno
import json
from types import SimpleNamespace

import pytest
import torch
from transformers.integrations import TrackioCallback, WandbCallback

from offleash.callbacks import RolloutCallback, SupportCallback, SupportGuard
from offleash.callbacks.observer import Observer
from offleash.eval.errors import EngineError, VerifyError
from offleash.eval.tasks import load_task
from offleash.train.progress import ProgressBar, postfix

pytestmark = pytest.mark.long


def failing(error, at, trainer, work):
    """`work`, which raises at these steps."""

    def attempt(*args, **kwargs):
        if trainer.state.global_step in at:
            raise error
        return work(*args, **kwargs)

    return attempt


def watched(make_trainer, name="run", **settings):
    trainer = make_trainer(name, max_steps=3, **settings)
    monitor = SupportCallback(trainer, load_task("countdown", split="probe", n=6), k=4, every=1, batch_size=8)
    trainer.add_callback(monitor)
    return trainer, monitor


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("_metrics", ValueError("bad \x1b[31mnews\nof many lines")),
        ("policy_pool.sampler._generate", torch.OutOfMemoryError("CUDA out of memory")),
        ("policy_pool.sampler._score", torch.OutOfMemoryError("CUDA out of memory")),
    ],
)
def test_a_monitor_that_fails_in_mid_run_changes_nothing_and_is_counted(
    make_trainer, trajectory, read_scalars, tmp_path, capsys, place, error
):
    plain = make_trainer("plain", max_steps=3)
    plain.train()
    trainer, monitor = watched(make_trainer)
    *owners, name = place.split(".")
    owner = monitor
    for part in owners:
        owner = getattr(owner, part)
    setattr(owner, name, failing(error, {1, 2}, trainer, getattr(owner, name)))
    trainer.train()
    assert trajectory(trainer) == trajectory(plain)
    assert sorted(monitor.history) == [0, 3]
    said = capsys.readouterr().out
    assert f"step 1 was not measured: {type(error).__name__}: {str(error)[:3]}" in said
    assert "\x1b" not in said
    assert read_scalars(tmp_path / "run" / "tensorboard")["monitor/failed"] == [(0, 0), (1, 1), (2, 2), (3, 2)]
    assert json.loads((tmp_path / "run" / "support.json").read_text())["steps"]["3"]["monitor/failed"] == 2


def test_a_base_that_could_not_be_sampled_is_sampled_at_the_next_measurement(make_trainer, capsys):
    trainer, monitor = watched(make_trainer, "late")
    sampler = monitor.policy_pool.sampler
    sampler._generate = failing(torch.OutOfMemoryError("CUDA out of memory"), {0}, trainer, sampler._generate)
    trainer.train()
    assert sorted(monitor.history) == [1, 2, 3]
    assert "step 0 was not measured: OutOfMemoryError" in capsys.readouterr().out
    usual, reference = watched(make_trainer, "usual")
    usual.train()
    assert reference.base_pool.path == monitor.base_pool.path  # and "usual" could reuse it
    assert reference.base_metrics == monitor.base_metrics
    assert reference.history[3]["support/unit/nscr"] == monitor.history[3]["support/unit/nscr"]


@pytest.mark.parametrize("error", [VerifyError("the judge is down"), EngineError("other weights")])
def test_a_broken_verifier_and_wrong_weights_still_stop_the_run(make_trainer, error):
    trainer, monitor = watched(make_trainer)
    sampler = monitor.policy_pool.sampler
    sampler._generate = failing(error, {2}, trainer, sampler._generate)
    with pytest.raises(type(error), match=str(error)):
        trainer.train()
    assert trainer.state.global_step == 2


def test_a_full_disk_costs_the_reports_and_not_the_run(make_trainer, tmp_path, monkeypatch, capsys):
    trainer, monitor = watched(make_trainer)
    trainer.add_callback(RolloutCallback(trainer, load_task("countdown", split="train", n=64)))
    trainer.add_callback(SupportGuard(monitor, "best pass_at_k/1"))
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuse(*args, **kwargs):
        raise full

    for place in (
        "callbacks.support.write_record",
        "callbacks.guard.write_atomic",
        "callbacks.trackers.to_tensorboard",
    ):
        monkeypatch.setattr(f"offleash.{place}", refuse)
    trainer.train()
    assert trainer.state.global_step == 3
    assert sorted(monitor.history) == [0, 1, 2, 3]
    said = capsys.readouterr().out
    for what in ("is not in support.json", "is not in best.json", "was not reported to TensorBoard"):
        assert f"{what}: OSError: [Errno 28] No space left on device" in said
    assert not (tmp_path / "run" / "support.json").exists()


class Down:
    run = "open"

    def log(self, values):
        raise ConnectionError("the server is gone")


class Up(Down):
    def __init__(self):
        self.logged = []

    def log(self, values):
        self.logged.append(values)


def test_a_tracker_that_is_down_takes_nothing_from_the_others_and_is_said_ever_less_often(stand_in_trainer, capsys):
    wandb, trackio, up = object.__new__(WandbCallback), object.__new__(TrackioCallback), Up()
    wandb._wandb, trackio._trackio = Down(), up
    trainer = stand_in_trainer(
        callback_handler=SimpleNamespace(callbacks=[wandb, trackio]), accelerator=SimpleNamespace(is_main_process=True)
    )
    observer = Observer(trainer)
    for step in range(10):
        observer.scalars({"a/b": 1.0}, step)
    assert observer.failed == 10
    lines = [line for line in capsys.readouterr().out.splitlines() if "not reported to W&B: ConnectionError" in line]
    assert [line.split("step ")[1].split()[0] for line in lines] == ["0", "1", "3", "7"]
    assert "(8 times so far)" in lines[-1]
    assert [values["a/b"] for values in up.logged if "a/b" in values] == [1.0] * 10
    assert [values["monitor/failed"] for values in up.logged if "monitor/failed" in values] == list(range(1, 11))


def test_the_progress_bar_shows_undefined_rewards_and_a_verifier_that_is_down():
    logs = {"reward": None, "kl": 0.25, "entropy": float("nan"), "verify/failed": 1.0}
    assert postfix(logs) == {"reward": "-", "kl": "0.250", "entropy": "-", "verifier failed": "100.0%"}
    assert postfix({"reward": 0.5, "verify/failed": 0.0}) == {"reward": "0.500"}
    bar, shown = ProgressBar(), []
    bar.training_bar = SimpleNamespace(set_postfix=shown.append)
    bar.on_log(None, SimpleNamespace(is_world_process_zero=True), None, logs=logs)
    assert shown == [postfix(logs)]
