"""A run's folder: its lock, whether a run may start in it, where it continues from, whether it has ended."""

import fcntl
import json
import os
from pathlib import Path

from transformers import TrainingArguments

from offleash.callbacks.event_files import trim_events
from offleash.callbacks.guard import STOPPED
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.train.preflight.launch import sharding
from offleash.train.recipe.config import Recipe, save_resolved
from offleash.train.run_folder.changes import (
    RESOLVED,
    Launch,
    changes,
    check_same_launch,
    check_unchanged,
    launch_changes,
    launch_of,
    read_launch,
    save_launch,
)
from offleash.train.run_folder.checkpoints import (
    check_resumable,
    checkpoints,
    last_complete_checkpoint,
    remove_incomplete,
    step_of,
    trainer_state,
)

FINAL = "final"
TENSORBOARD = "tensorboard"
LOCK = ".lock"


def hold(folder: Path, message: str) -> int:
    """Lock a folder, creating it if needed; raise ConfigError with `message` if another process holds the lock.

    Returns the open file descriptor. The lock is released when the last process that inherited it ends. (filelock
    keeps its descriptor private, and a sweep passes this one on to its runs.)
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise ConfigError(f"cannot write in {folder}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise ConfigError(message) from error
    except OSError as error:  # some network file systems have no locks
        say(f"offleash: WARNING: {folder} cannot be locked ({error.strerror}): start no other run in it")
    return lock


def find_start(recipe: Recipe, folder: Path) -> Path | None:
    """The checkpoint to continue from, None to start. Changes nothing; a run that would be overwritten is an error."""
    used = (folder / RESOLVED).exists() or (folder / "pools").exists() or bool(checkpoints(folder))
    if used and not recipe.run.resume:
        raise ConfigError(f"{folder} contains a run: add --resume to continue it, or choose another --output_dir")
    checkpoint = last_complete_checkpoint(folder, read_launch(folder).processes)
    if checkpoint is None:
        return None
    if not why_ended(folder, checkpoint, recipe.training):
        check_same_launch(recipe, folder)
        check_resumable(checkpoint, recipe.training.world_size, sharding(recipe.training))
    check_unchanged(recipe, folder)
    return checkpoint


def begin(recipe: Recipe, folder: Path, checkpoint: Path | None, train_problems: str | None = None) -> None:
    """Prepare the folder: remove what is later than the checkpoint, save the resolved recipe and the launch.

    `train_problems` is the fingerprint of the training problems, which must be those the run was started with.
    """
    launch = launch_of(recipe.training, train_problems)
    if checkpoint is not None:
        check_same_launch(recipe, folder, train_problems)
    for incomplete in remove_incomplete(folder, read_launch(folder).processes):
        say(f"offleash: {incomplete} is incomplete and is removed")
    if recipe.run.resume:
        step = step_of(checkpoint) if checkpoint else -1
        dropped = trim_events(folder / TENSORBOARD, step)
        if checkpoint is not None:
            say(f"offleash: continuing from {checkpoint} ({dropped} later events dropped)")
            _keep_former_recipe(recipe, launch, folder, step)
        elif (folder / "pools").exists():
            # Killed before its first checkpoint: the run starts over and draws these again.
            spare = next(p for n in range(1, 10_000) if not (p := folder / f"pools-before-restart-{n}").exists())
            (folder / "pools").rename(spare)
    save_resolved(recipe, folder / RESOLVED)
    save_launch(launch, folder)


def _keep_former_recipe(recipe: Recipe, launch: Launch, folder: Path, step: int) -> None:
    """If settings changed with permission, keep a record of those so far."""
    if changed := changes(recipe, folder):
        former = folder / f"recipe-to-step-{step:06d}.yaml"
        (folder / RESOLVED).replace(former)
        say(f"offleash: from step {step} on, {'; '.join(map(str, changed))} (before: {former})")
    if changed := launch_changes(launch, folder):
        say(f"offleash: from step {step} on, {'; '.join(map(str, changed))}")


def why_ended(folder: Path, checkpoint: Path, training: TrainingArguments) -> str | None:
    """Why nothing is left to train, None if something is. The Trainer, resumed at its end, would take another step."""
    stopped = folder / STOPPED
    record = json.loads(stopped.read_text()) if stopped.exists() else None
    # A run killed before the checkpoint of its last step was complete takes that step again.
    if record is not None and record["checkpoint"] == checkpoint.name:
        return f"the rule {record['rule']!r} stopped it; remove {stopped} to continue training"
    state = trainer_state(checkpoint)
    if state is None:
        return None
    if training.max_steps > 0:
        return f"at step {state['global_step']}" if state["global_step"] >= training.max_steps else None
    return f"after {state['epoch']:g} epochs" if (state["epoch"] or 0) >= training.num_train_epochs else None
