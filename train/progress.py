"""The progress bar of a run: one line with the current metrics instead of a dictionary at every step."""

from typing import Any

from transformers import ProgressCallback, TrainerControl, TrainerState, TrainingArguments

from offleash.callbacks.summary import three_digits
from offleash.train.explorers.metrics import VERIFIER_FAILED

SHOWN = ("reward", "kl", "entropy")


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
            self.training_bar.set_postfix(postfix(logs))


def postfix(logs: dict[str, Any]) -> dict[str, str]:
    """What the bar shows. TRL logs None where no value is defined, such as the reward where no verdict was possible."""
    shown = {name: three_digits(logs[name]) for name in SHOWN if name in logs}
    failed = logs.get(VERIFIER_FAILED.key)
    return {**shown, "verifier failed": f"{failed:.1%}"} if failed else shown
