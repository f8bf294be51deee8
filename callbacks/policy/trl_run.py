"""The run around the policy: metrics, rollouts and data order, checkpoints, trackers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import TrackioCallback, WandbCallback

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_internals import internals_of


def train_metrics(trainer: PolicyTrainer) -> dict[str, list[float]]:
    """What is averaged and logged at the next logging step. Relies on `_metrics["train"]`, a dictionary of lists."""
    return internals_of(trainer)._metrics["train"]


def latest_rollouts(trainer: PolicyTrainer) -> tuple[list[Any], list[Any]]:
    """Prompts and completions of all ranks, group by group. Relies on `_logs`, which TRL keeps for its own log."""
    logs = internals_of(trainer)._logs
    return list(logs["prompt"]), list(logs["completion"])


def micro_batch(trainer: PolicyTrainer) -> int:
    """Which micro-batch of the optimizer step this is. Relies on `_step`, which restarts at 0 when a run resumes."""
    return int(internals_of(trainer)._step % trainer.args.gradient_accumulation_steps)


def train_sampler(trainer: PolicyTrainer) -> Any:
    """Dataset rows in the order of training, each as often as it is drawn. Relies on `_get_train_sampler`."""
    return internals_of(trainer)._get_train_sampler()


def save_model(trainer: PolicyTrainer, folder: Path) -> None:
    """Save the weights without a push of the run's folder. Relies on `save_model(_internal_call=True)`."""
    internals_of(trainer).save_model(str(folder), _internal_call=True)


def checkpoint_folder(trainer: PolicyTrainer, trial: Any) -> Path:
    """Where `_save_checkpoint` writes. Relies on `_get_output_dir` and the folder's name."""
    return Path(internals_of(trainer)._get_output_dir(trial=trial)) / f"checkpoint-{trainer.state.global_step}"


def entropy_controller(trainer: PolicyTrainer) -> dict[str, float] | None:
    """The state of TRL's adaptive entropy bonus, as its `entropy_ctrl_state.json` has it. None without the bonus."""
    inside = internals_of(trainer)
    if not inside.use_adaptive_entropy:
        return None
    return {"entropy_coef": inside.entropy_coef, "last_world_entropy": inside._last_world_entropy}


def unsaved_weights(model: Any) -> set[str]:
    """Weights that a checkpoint need not have. Relies on `all_tied_weights_keys` and `_keys_to_ignore_on_save`."""
    return {*model.all_tied_weights_keys, *(model._keys_to_ignore_on_save or ())}


def set_device(training: TrainingArguments, device: torch.device) -> None:
    """Relies on `device` being cached in `_setup_devices`."""
    training.__dict__["_setup_devices"] = device


def log_to_wandb(callback: WandbCallback, values: Mapping[str, Any]) -> None:
    """Relies on the callback's `_wandb`, the module, None if it is not installed."""
    if callback._wandb is not None and callback._wandb.run is not None:
        callback._wandb.log(dict(values))


def log_to_trackio(callback: TrackioCallback, values: Mapping[str, Any]) -> None:
    """Relies on the callback's `_trackio`, the module."""
    callback._trackio.log(dict(values))


def alert_by_trackio(callback: TrackioCallback, title: str, text: str) -> None:
    """Relies on the callback's `_trackio`, the module."""
    callback._trackio.alert(title, text, level=callback._trackio.AlertLevel.WARN)


def tracker_module(callback: WandbCallback | TrackioCallback) -> Any:
    """`wandb` with an open run, or `trackio`; None if there is none. Relies on `_wandb` and `_trackio`."""
    if isinstance(callback, WandbCallback):
        return callback._wandb if callback._wandb is not None and callback._wandb.run is not None else None
    return callback._trackio
