"""Ctrl-C in training: the step is completed, a checkpoint saved, and the run ends. A second Ctrl-C ends it at once.

The launcher turns SIGTERM into the same. Not here: by SIGTERM the launcher ends the processes of a run of which one
has failed, and those must not wait for a step that will never be complete.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.train.explorers.checks import updates_per_rollout

ONE_SIGNAL = 1.0
"""Seconds in which two signals are one: a scheduler may send it to every process, and the launcher passes it on."""
SOON = b"\noffleash: interrupted: saving a checkpoint after this step (Ctrl-C again ends at once, without one)\n"


class InterruptCallback(TrainerCallback):
    """Saves a checkpoint once an interrupt was received, then raises KeyboardInterrupt. Add it as the last callback.

    The checkpoint is the same as that of a run that saves at this step: no other callback learns of the interrupt.
    """

    def __init__(self, trainer: PolicyTrainer) -> None:
        self.trainer = trainer
        self._received_at: float | None = None
        self._stopping = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receive Ctrl-C in this block; Python allows that in the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._receive)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # Between two updates of the same rollout a checkpoint would lose the remaining ones.
        is_aligned = state.global_step % updates_per_rollout(self.trainer.args) == 0
        if self._received_anywhere() and is_aligned and state.global_step < state.max_steps:
            self._stopping = control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._stopping:
            raise KeyboardInterrupt(f"checkpoint-{state.global_step} is saved")

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received_at is not None:
            if time.monotonic() - self._received_at > ONE_SIGNAL:
                raise KeyboardInterrupt
            return
        self._received_at = time.monotonic()
        if self.trainer.accelerator.is_local_main_process:
            os.write(2, SOON)  # not print: the signal may have come in the middle of one

    def _received_anywhere(self) -> bool:
        """Ranks must save together, and a signal may reach them at different steps."""
        accelerator = self.trainer.accelerator
        if accelerator.num_processes == 1:
            return self._received_at is not None
        flag = torch.tensor(float(self._received_at is not None), device=accelerator.device)
        return bool(accelerator.reduce(flag, "sum").item())
