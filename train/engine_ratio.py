"""A warning when TRL's correction for vLLM's samples has made the updates small (`forecast/engine_weights.py`)."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from offleash.eval.console import say
from offleash.train.forecast.engine_weights import LOW

RATIO = "sampling/importance_sampling_ratio/mean"
"""TRL's key of the mean weight (trl 1.16)."""


class EngineRatioWarning(TrainerCallback):
    """Says once that rollouts count less than they should, and what to set."""

    told = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        ratio = (logs or {}).get(RATIO)
        if self.told or ratio is None or not ratio < LOW:
            return
        self.told = True
        if state.is_world_process_zero:
            say(f"offleash: WARNING: step {state.global_step}: {ratio_warning(ratio, args)}")


def ratio_warning(ratio: float, training: Any) -> str:
    mode = training.vllm_importance_sampling_mode
    told = f"{RATIO} is {ratio:.2f}: by {mode} rollouts count that little in the update"
    if mode.startswith("sequence"):
        return f"{told}, long ones least; set vllm_importance_sampling_mode: token_truncate"
    return f"{told}, so vLLM and the trainer disagree on single tokens: compare their dtypes and sampling settings"
