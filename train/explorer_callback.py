"""When explorers prepare, what they do after each step, and how their own metrics are logged."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from offleash.callbacks.policy.trl_seam import train_metrics
from offleash.train.explorers.metrics import OWN, TOTALS


class ExplorerCallback(TrainerCallback):
    """Calls the explorers' `prepare` and `after_step`, and logs their metrics."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        for explorer in self.trainer.explorers:
            explorer.prepare(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        for explorer in self.trainer.explorers:
            explorer.after_step(state.global_step)
            for name, value in explorer.metrics().items():
                series = train_metrics(self.trainer)[OWN.fill(name=name).key]
                series[:] = [value] if name in TOTALS else [*series, value]  # the Trainer logs means
