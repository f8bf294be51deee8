"""The progress bar of a run: one line with the current metrics instead of a dictionary at every step."""

from typing import Any

from transformers import ProgressCallback, TrainerControl, TrainerState, TrainingArguments

SHOWN = {"reward": "reward", "kl": "kl", "entropy": "entropy"}


class ProgressBar(ProgressCallback):
    """The Trainer's bar without its printed logs, which are in TensorBoard and `trainer_state.json`."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and self.training_bar is not None and logs and "reward" in logs:
            self.training_bar.set_postfix({name: f"{logs[key]:.3f}" for key, name in SHOWN.items() if key in logs})
