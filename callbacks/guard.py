"""SupportGuard: stop a run, or mark its best checkpoint, on a rule over the monitored metrics.

Two kinds of rule:  `srr < 0.9`  stops the run (and saves a checkpoint) the first time it holds;
                    `best sds`   saves a checkpoint at each new highest value and keeps it from being rotated away.
A bare name means the unit level of support (`srr` is `support/unit/...`); any monitored tag can be written in full.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from offleash.callbacks.support import SupportCallback
from offleash.callbacks.tags import UNIT
from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.eval.stats.support import CELLS, METRICS

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SHORT = {name: getattr(UNIT, name).tag for name in (*METRICS, *CELLS)}
"""Names of the unit level that need no group before them."""
BEST = "best.json"
STOPPED = "stopped.json"


class Rule(NamedTuple):
    text: str
    tag: str
    compare: str
    """An operator, or "best"."""
    bound: float = math.nan

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Whether a stopping rule fires; an undefined number (NaN) fires nothing."""
        return OPERATORS[self.compare](metrics[self.tag], self.bound)


def parse_rule(text: str) -> Rule:
    """`TAG < NUMBER` (also <=, >, >=) or `best TAG`."""
    if match := re.fullmatch(r"\s*best\s+(\S+)\s*", text):
        return Rule(text.strip(), _tag(match[1]), "best")
    if match := re.fullmatch(r"\s*(\S+?)\s*(<=|>=|<|>)\s*([-+0-9.eE]+)\s*", text):
        try:
            return Rule(text.strip(), _tag(match[1]), match[2], float(match[3]))
        except ValueError:
            pass
    raise ConfigError(f"cannot read the guard {text!r}: write 'srr < 0.9' to stop, or 'best sds' to mark a checkpoint")


def _tag(name: str) -> str:
    return SHORT.get(name, name)


class SupportGuard(TrainerCallback):
    """Add it after the SupportCallback it watches.

    Args:
        monitor: the SupportCallback whose metrics the rules are about.
        rules: one rule or several, see the module's docstring.
    """

    def __init__(self, monitor: SupportCallback, rules: str | Iterable[str]) -> None:
        self.monitor = monitor
        self.rules = [parse_rule(rule) for rule in ([rules] if isinstance(rules, str) else rules)]
        if sum(rule.compare == "best" for rule in self.rules) > 1:
            raise ConfigError("only one 'best' rule can be kept: the Trainer protects one checkpoint from rotation")
        self.said: list[str] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        for rule in self.rules:
            known = self.monitor.latest
            if known and rule.tag not in known:
                raise ConfigError(
                    f"guard {rule.text!r}: there is no metric {rule.tag!r}; there are {', '.join(sorted(known))}"
                )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        metrics = self.monitor.history.get(state.global_step)
        if metrics is None:
            return
        for rule in self.rules:
            if rule.compare == "best":
                self._mark_best(rule, args, state, control)
            elif rule.holds(metrics):
                control.should_save = control.should_training_stop = True
                self.monitor.log_base(state.global_step)
                self._record(STOPPED, rule, metrics[rule.tag], args, state)
                self._say(
                    f"stopped at step {state.global_step}: {rule.tag} is {metrics[rule.tag]:.4g}, "
                    f"and the rule is {rule.text!r}. A checkpoint is saved",
                    state,
                )

    def _mark_best(self, rule: Rule, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """The history holds every measured step, also those before a resume, so the best is always known."""
        values = {
            step: metrics[rule.tag]
            for step, metrics in self.monitor.history.items()
            if step > 0 and not math.isnan(metrics.get(rule.tag, math.nan))
        }
        step = state.global_step
        if step not in values or any(value >= values[step] for s, value in values.items() if s < step):
            return
        control.should_save = True
        assert args.output_dir is not None
        checkpoint = Path(args.output_dir) / f"checkpoint-{step}"
        # The Trainer never rotates this one away, and `best_global_step` lets it find the folder once it is saved.
        state.best_model_checkpoint, state.best_global_step, state.best_metric = str(checkpoint), step, values[step]
        self._record(BEST, rule, values[step], args, state)
        self._say(f"best {rule.tag} so far is {values[step]:.4g} at step {step}: {checkpoint.name} is kept", state)

    def _record(self, name: str, rule: Rule, value: float, args: TrainingArguments, state: TrainerState) -> None:
        if state.is_world_process_zero:
            assert args.output_dir is not None
            record = {"rule": rule.text, "metric": rule.tag, "value": value, "step": state.global_step}
            record["checkpoint"] = f"checkpoint-{state.global_step}"
            write_atomic(Path(args.output_dir) / name, json.dumps(record, indent=1).encode())

    def _say(self, message: str, state: TrainerState) -> None:
        self.said.append(message)
        if state.is_world_process_zero:
            print(f"offleash: guard: {message}", flush=True)
