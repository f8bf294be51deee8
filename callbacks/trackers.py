"""Hands metrics to whatever `report_to` asked for, under our own names (the Trainer would put them all in `train/`)."""

import math
from collections.abc import Mapping
from typing import Any

from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import log_to_trackio, log_to_wandb


class Trackers:
    """The trainer's reporting callbacks, written to directly. Only the main process has them open."""

    def __init__(self, trainer: PolicyTrainer) -> None:
        self.trainer = trainer

    @property
    def tensorboard(self) -> Any:
        """The SummaryWriter of the Trainer's TensorBoard callback, None if there is none or it is closed."""
        return next((cb.tb_writer for cb in self._callbacks(TensorBoardCallback)), None)

    def scalars(self, metrics: Mapping[str, float], step: int) -> None:
        """Undefined numbers (NaN) are left out: a gap says more than a zero."""
        finite = {tag: value for tag, value in metrics.items() if math.isfinite(value)}
        if (writer := self.tensorboard) is not None:
            for tag, value in finite.items():
                writer.add_scalar(tag, value, step)
            writer.flush()
        for callback in self._callbacks(WandbCallback):
            log_to_wandb(callback, {**finite, "train/global_step": step})
        for callback in self._callbacks(TrackioCallback):
            log_to_trackio(callback, {**finite, "train/global_step": step})

    def _callbacks(self, kind: type) -> list[Any]:
        return [cb for cb in self.trainer.callback_handler.callbacks if isinstance(cb, kind)]
