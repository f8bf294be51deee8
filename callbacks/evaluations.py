"""A measured step as an evaluation of the Trainer's: a row of `log_history`, and the choice of its best checkpoint.

Every measured step is a row of `trainer.state.log_history`, its tags prefixed by `eval_` as an evaluation's are. Where
`metric_for_best_model` is one of these tags (`support/unit/nscr`), a measured step is an evaluation in full: callbacks
get `on_evaluate` with its metrics, which EarlyStoppingCallback waits for, and a step with a new best value is saved and
becomes the best one, for `load_best_model_at_end` and `save_strategy="best"`. If the Trainer evaluates at that step
itself, its evaluation gets our metrics too, and nothing happens twice.

Step 0 has a row and is never the best one: no checkpoint has its weights. Undefined numbers (NaN) are left out.

Nothing goes through `Trainer.log`, which would flush TRL's running averages and write to the trackers once more.
"""

import difflib
import math
from collections.abc import Collection, Mapping
from typing import Any

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments

from offleash.callbacks import tags
from offleash.callbacks.metrics import measured
from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.eval.errors import ConfigError
from offleash.eval.stats.exact_support import EPSILONS

PREFIX = "eval_"


def measured_tags(k: int, temperature: float, exact: bool, successes: int | None = None) -> set[str]:
    """What `metric_for_best_model` may name."""
    floors = {tags.at_floor(tags.EXACT_NSCR, eps).tag for eps in EPSILONS}
    by_enumeration = {tags.EXACT_PASS_AT_1.tag, tags.EXACT_ENTROPY.tag, *floors}
    return {metric.tag for metric in measured(k, temperature, successes)} | (by_enumeration if exact else set())


def chosen_metric(args: TrainingArguments, known: Collection[str]) -> str | None:
    """The tag by which the Trainer picks its best checkpoint; None if that is a metric of its own, such as the reward.

    Raises ConfigError for a tag that looks like one of `known` and is none: no step would ever be the best.
    """
    named = (args.metric_for_best_model or "").removeprefix(PREFIX)
    if "/" not in named or named.partition("/")[0] not in {tag.partition("/")[0] for tag in known}:
        return None
    check_is_measured(named, known)
    return named


def check_is_measured(named: str, known: Collection[str]) -> None:
    """Raise ConfigError, suggesting a close one, if `metric_for_best_model` is not one of `known`."""
    if named.removeprefix(PREFIX) not in known:
        close = difflib.get_close_matches(named, sorted(known), n=1)
        hint = f"did you mean {close[0]}?" if close else "`offleash metrics` lists them, e.g. support/unit/nscr"
        raise ConfigError(f"metric_for_best_model: the monitor measures no {named!r}; {hint}")


def as_evaluation(metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{PREFIX}{tag}": value for tag, value in metrics.items() if math.isfinite(value)}


class Evaluations:
    """The measured steps of a run, as the Trainer sees them."""

    def __init__(self, trainer: PolicyTrainer, known: Collection[str], every: int) -> None:
        self.trainer, self.every = trainer, every
        self.tag = chosen_metric(trainer.args, known)

    def begin(self, state: TrainerState) -> None:
        """Call it when training begins. Raises ConfigError if the Trainer would evaluate at a step without metrics."""
        if self.tag is None:
            return
        strategy = self.trainer.args.eval_strategy  # an enumeration of strings
        if strategy == "epoch" or (strategy == "steps" and state.eval_steps % self.every):
            when = f"every {state.eval_steps:g} steps" if strategy == "steps" else "at the end of each epoch"
            raise ConfigError(
                f"metric_for_best_model is {self.tag}, which is measured every {self.every} steps, but the trainer "
                f"evaluates {when}: set eval_strategy to steps and eval_steps to a multiple of {self.every}"
            )
        # They look at the metrics of an evaluation, to which we add ours. A new list: the old one is being walked over.
        handler = self.trainer.callback_handler
        stoppers = [each for each in handler.callbacks if isinstance(each, EarlyStoppingCallback)]
        handler.callbacks = [each for each in handler.callbacks if each not in stoppers] + stoppers

    def add_row(self, metrics: Mapping[str, float], state: TrainerState) -> None:
        epoch = {} if state.epoch is None else {"epoch": state.epoch}
        state.log_history.append({**as_evaluation(metrics), **epoch, "step": state.global_step})

    def report(self, metrics: Mapping[str, float], state: TrainerState, control: TrainerControl) -> None:
        """After a measured step: its row, and its evaluation unless the Trainer is about to make one."""
        self.add_row(metrics, state)
        if self.tag is None or control.should_evaluate or math.isnan(metrics.get(self.tag, math.nan)):
            return
        args = self.trainer.args
        self.trainer.callback_handler.call_event("on_evaluate", args, state, control, metrics=as_evaluation(metrics))
        if self._is_best(metrics[self.tag], state):
            state.best_metric = metrics[self.tag]
            if self._saves():
                state.best_global_step, control.should_save = state.global_step, True

    def complete(
        self, evaluation: dict[str, Any], metrics: Mapping[str, float], state: TrainerState, control: TrainerControl
    ) -> None:
        """Add the step's metrics to an evaluation, from which the Trainer picks the best one; NaN is never the best."""
        if self.tag is None:
            return
        evaluation |= {f"{PREFIX}{self.tag}": math.nan, **as_evaluation(metrics)}
        if self._saves() and self._is_best(metrics.get(self.tag, math.nan), state):
            control.should_save = True

    def _saves(self) -> bool:
        return bool(self.trainer.args.save_strategy != "no")

    def _is_best(self, value: float, state: TrainerState) -> bool:
        if math.isnan(value):
            return False
        if state.best_metric is None:
            return True
        return value > state.best_metric if self.trainer.args.greater_is_better else value < state.best_metric
