"""What a person sees while a run goes on: one bar with the numbers of the moment, not a dictionary every step."""

from typing import Any

from transformers import ProgressCallback, TrainerControl, TrainerState, TrainingArguments

SHOWN = {"reward": "reward", "kl": "kl", "entropy": "entropy"}


class ProgressBar(ProgressCallback):
    """The Trainer's bar; what it would print as a dictionary is in TensorBoard and `trainer_state.json`."""

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
