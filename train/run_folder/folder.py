"""A run's folder: whether a run may start in it, where it continues from, whether it has ended."""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from transformers import TrainingArguments

from offleash.callbacks.event_files import EVENT_FILES, trim_events
from offleash.callbacks.guard import STOPPED
from offleash.callbacks.summary import HISTORY, read_record
from offleash.callbacks.watch.sealed import trainer_state
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
    Choice,
    check_resumable,
    checkpoints,
    choose_checkpoint,
    clear_later,
    set_aside,
    step_of,
)

FINAL = "final"
PART = "final.part"
"""The name of the final model's folder until it is complete."""
FORMER = "final.former"
"""That of a finished run while it is continued: `final` would be taken for the model of the later step."""
POOLS = "pools"
_FORMER_EVENTS = "tensorboard"
"""Where earlier versions put the event files: TensorBoard took that for the name of the run."""


class Start(NamedTuple):
    """Where a run begins."""

    choice: Choice
    ended: str | None = None
    """Why nothing is left to train; None if something is."""

    @property
    def checkpoint(self) -> Path | None:
        return self.choice.checkpoint


def events_folder(folder: Path) -> Path:
    """Where TensorBoard's files of a run are: in its folder, whose name TensorBoard shows."""
    former = folder / _FORMER_EVENTS
    return former if any(path.is_file() for path in former.glob(EVENT_FILES)) else folder


def find_start(recipe: Recipe, folder: Path) -> Start:
    """Where to continue, or that there is nothing to do. Changes nothing; a run that would be lost is an error."""
    parts = (RESOLVED, POOLS, HISTORY, FINAL)
    used = any((folder / part).exists() for part in parts) or bool(checkpoints(folder))
    if used and not recipe.run.resume:
        raise ConfigError(f"{folder} contains a run: add --resume to continue it, or choose another --output_dir")
    if used and not (folder / RESOLVED).exists():
        raise ConfigError(
            f"{folder} contains a run without its {RESOLVED}, so that nobody can tell whether its settings are these: "
            "restore that file, or choose another --output_dir"
        )
    choice = choose_checkpoint(folder, read_launch(folder).processes)
    if choice.checkpoint is None:
        check_unchanged(recipe, folder)
        return Start(choice, _ended_without_checkpoint(recipe, folder))
    ended = why_ended(folder, choice.checkpoint, recipe.training) or _ended_at_best(folder, recipe.training)
    if ended is None:
        check_same_launch(recipe, folder)
        check_resumable(choice.checkpoint, recipe.training.world_size, sharding(recipe.training))
    check_unchanged(recipe, folder)
    return Start(choice, ended)


def _ended_without_checkpoint(recipe: Recipe, folder: Path) -> str | None:
    """Why nothing is left to train in a folder without checkpoints; None if the run is to start from scratch.

    Raises ConfigError if that would replace a run whose checkpoints were removed.
    """
    rest = "there is no checkpoint to continue from: choose another --output_dir"
    if (folder / FORMER).exists() and not (folder / FINAL).exists():
        raise ConfigError(f"{folder} was being continued ({FORMER} is the model it had), and {rest}")
    if (folder / FINAL).exists():
        if changed := changes(recipe, folder):
            raise ConfigError(f"{folder} has a final model, and {'; '.join(map(str, changed))}, but {rest}")
        return f"{FINAL} is there and no checkpoint is left"
    if not (folder / HISTORY).exists():
        return None
    record = read_record(folder)
    if record is None:
        raise ConfigError(f"{folder / HISTORY} cannot be read, and {rest}, or remove it to start from scratch")
    # A run killed before its first checkpoint loses nothing when it starts over.
    if (last := max(map(int, record["steps"]), default=0)) > _first_save(folder):
        raise ConfigError(f"{folder} was measured up to step {last}, and {rest}")
    return None


def _first_save(folder: Path) -> float:
    """The step of the first checkpoint of the run in this folder; infinite if it was to write none."""
    saved = yaml.safe_load((folder / RESOLVED).read_text())
    every = saved.get("save_steps") or 0
    if 0 < every < 1:  # a fraction of the run
        every = math.ceil(every * max(saved.get("max_steps") or 0, 0))
    return every if saved.get("save_strategy") == "steps" and every >= 1 else float("inf")


def begin(recipe: Recipe, folder: Path, choice: Choice, train_problems: str | None = None) -> None:
    """Prepare the folder: remove what is later than the checkpoint, save the resolved recipe and the launch.

    `train_problems` is the fingerprint of the training problems, which must be those the run was started with. Call it
    once the checkpoint has been loaded: nothing is changed for a run that cannot continue.
    """
    launch, checkpoint = launch_of(recipe.training, train_problems), choice.checkpoint
    if checkpoint is not None:
        check_same_launch(recipe, folder, train_problems)
    clear_later(choice)
    shutil.rmtree(folder / PART, ignore_errors=True)
    if (folder / FINAL).exists():
        shutil.rmtree(folder / FORMER, ignore_errors=True)
        (folder / FINAL).rename(folder / FORMER)
        say(f"offleash: {folder / FINAL} is kept as {FORMER} until the new one is complete")
    if recipe.run.resume:
        step = step_of(checkpoint) if checkpoint else -1
        dropped = trim_events(events_folder(folder), step)
        if checkpoint is not None:
            say(f"offleash: continuing from {checkpoint} ({dropped} later events dropped)")
            _keep_former_recipe(recipe, launch, folder, step)
            _keep_damaged_record(folder)
        elif (folder / POOLS).exists():
            # Killed before its first checkpoint: the run starts over and draws these again.
            spare = next(p for n in range(1, 10_000) if not (p := folder / f"pools-before-restart-{n}").exists())
            (folder / POOLS).rename(spare)
    save_resolved(recipe, folder / RESOLVED)
    save_launch(launch, folder)


def _keep_damaged_record(folder: Path) -> None:
    """The samples of every measured step are in its pool: a record that cannot be read must not stop a run."""
    if (folder / HISTORY).exists() and read_record(folder) is None:
        kept = set_aside(folder / HISTORY)
        say(
            f"offleash: WARNING: {folder / HISTORY} cannot be read: it is kept as {kept.name}, and the new one begins "
            f"here (the samples of earlier measurements are in {folder / POOLS})"
        )


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
    state = trainer_state(checkpoint)
    if state is None:
        return None
    if (rule := _stopped_by(folder / STOPPED, checkpoint, state)) is not None:
        return f"{rule} stopped it; remove {folder / STOPPED} to continue training"
    if training.max_steps > 0:
        return f"at step {state['global_step']}" if state["global_step"] >= training.max_steps else None
    return f"after {state['epoch']:g} epochs" if (state["epoch"] or 0) >= training.num_train_epochs else None


def _ended_at_best(folder: Path, training: TrainingArguments) -> str | None:
    """With `save_strategy: best` the last step has no checkpoint; the final model and its measurement show the end."""
    if training.save_strategy != "best" or not (folder / FINAL).exists():
        return None
    measured = max((read_record(folder) or {}).get("steps") or {}, default=0)
    return f"at step {measured}" if 0 < training.max_steps <= measured else None


def _stopped_by(path: Path, checkpoint: Path, state: Mapping[str, Any]) -> str | None:
    """What ended a run with this checkpoint, None if no rule did."""
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text())
        # A run killed before the checkpoint of its last step was complete takes that step again.
        return f"the rule {record['rule']!r}" if record["checkpoint"] == checkpoint.name else None
    except (OSError, ValueError, LookupError, TypeError):  # the checkpoint knows that it was the last one
        control = state.get("stateful_callbacks", {}).get("TrainerControl", {}).get("args", {})
        return f"a rule ({path.name} cannot be read)" if control.get("should_training_stop") else None
