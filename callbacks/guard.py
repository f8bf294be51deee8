"""SupportGuard: stop a run, or keep its best checkpoint, by a rule about the monitored metrics.

Three kinds of rule:  `srr < 0.9`        stops the run (and saves a checkpoint) the first time it holds;
                      `patience 3 nscr`  does so after 3 measured steps in a row without a new highest value;
                      `best sds`         saves a checkpoint at each new highest value and protects it from rotation.
A bare name means support of units (`srr` is the SRR of units); any other monitored tag is written in full.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from offleash.callbacks.metrics import measured
from offleash.callbacks.support import SupportCallback
from offleash.callbacks.tags import UNIT
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.eval.stats.support import CELLS, METRICS

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SHORT: dict[str, str] = {name: getattr(UNIT, name).tag for name in (*METRICS, *CELLS)}
"""Short names of rules -> tags of the unit level."""
BEST = "best.json"
STOPPED = "stopped.json"


class Rule(NamedTuple):
    text: str
    tag: str
    compare: str
    """An operator, "best" or "patience"."""
    bound: float = math.nan

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Whether a stopping rule fires; it never does on an undefined number (NaN)."""
        return self.compare in OPERATORS and OPERATORS[self.compare](metrics[self.tag], self.bound)

    def is_out_of_patience(self, history: Mapping[int, Mapping[str, float]]) -> bool:
        """Whether the last measured steps have no new highest value. Step 0, and undefined numbers, do not count."""
        steps = sorted(step for step in history if step > 0)
        values = [value for step in steps if not math.isnan(value := history[step].get(self.tag, math.nan))]
        since = len(values) - 1 - values.index(max(values)) if values else 0
        return self.compare == "patience" and since >= self.bound


def parse_rule(text: str) -> Rule:
    """`TAG < NUMBER` (also <=, >, >=), `patience STEPS TAG` or `best TAG`."""
    if match := re.fullmatch(r"\s*best\s+(\S+)\s*", text):
        return Rule(text.strip(), SHORT.get(match[1], match[1]), "best")
    if (match := re.fullmatch(r"\s*patience\s+([0-9]{1,6})\s+(\S+)\s*", text)) and int(match[1]):
        return Rule(text.strip(), SHORT.get(match[2], match[2]), "patience", float(match[1]))
    if match := re.fullmatch(r"\s*(\S+?)\s*(<=|>=|<|>)\s*([-+0-9.eE]+)\s*", text):
        try:
            return Rule(text.strip(), SHORT.get(match[1], match[1]), match[2], float(match[3]))
        except ValueError:
            pass
    raise ConfigError(
        f"cannot parse the guard {text!r}: write 'srr < 0.9' or 'patience 3 nscr' to stop, or 'best sds' to keep a "
        "checkpoint"
    )


class SupportGuard(TrainerCallback):
    """Stop training, or keep the best checkpoint, by rules about what a SupportCallback measures. Add it after that.

    Args:
        monitor: the SupportCallback whose metrics the rules are about.
        rules: one or several of `TAG < NUMBER` (also <=, >, >=), which stops the run, `patience N TAG`, which stops it
            after N measured steps without a new highest value, and `best TAG`, which keeps the checkpoint with the
            highest value. Short names such as `srr`, `nscr` mean support of units.

    Example:
        >>> from importlib.resources import files
        >>> from datasets import Dataset
        >>> from trl import GRPOConfig, GRPOTrainer
        >>> from offleash.callbacks import SupportCallback, SupportGuard
        >>> from offleash.eval import load_task
        >>> task = load_task("countdown", split="train", n=16)
        >>> trainer = GRPOTrainer(
        ...     model=str(files("offleash.recipes") / "lab" / "base"),
        ...     reward_funcs=lambda completions, **columns: [float("=" in text) for text in completions],
        ...     train_dataset=Dataset.from_list([{"prompt": problem.prompt} for problem in task.problems]),
        ...     args=GRPOConfig(
        ...         output_dir="runs/example", max_steps=4, num_generations=4, per_device_train_batch_size=8,
        ...         max_completion_length=20, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
        ...     ),
        ... )
        >>> monitor = SupportCallback(trainer, load_task("countdown", split="probe", n=4), k=4, every=1)
        >>> guard = SupportGuard(monitor, "out >= 0")  # always true: stops at the first measured step
        >>> trainer.add_callback(monitor)
        >>> trainer.add_callback(guard)
        >>> result = trainer.train()  # doctest: +ELLIPSIS
        offleash: base pool ...
        offleash: guard: stopped at step 1: ...
        >>> trainer.state.global_step
        1
    """

    def __init__(self, monitor: SupportCallback, rules: str | Iterable[str]) -> None:
        self.monitor = monitor
        self.rules = [parse_rule(rule) for rule in ([rules] if isinstance(rules, str) else rules)]
        if sum(rule.compare == "best" for rule in self.rules) > 1:
            raise ConfigError(
                "only one 'best' rule is possible: the Trainer protects a single checkpoint from rotation"
            )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        watched = self.monitor
        known = {metric.tag for metric in measured(watched.k, watched.trainer.temperature, watched.successes)}
        for rule in self.rules:
            if rule.tag not in known:
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
            elif rule.holds(metrics) or rule.is_out_of_patience(self.monitor.history):
                control.should_save = control.should_training_stop = True
                self._record(STOPPED, rule, metrics[rule.tag], args, state)
                reason = f"{rule.tag} is {metrics[rule.tag]:.4g}, and the rule is {rule.text!r}"
                self._say(f"stopped at step {state.global_step}: {reason}. A checkpoint will be saved", state)
                if state.is_world_process_zero:
                    title = f"Stopped at step {state.global_step}"
                    self.monitor.observer.alert(title, reason, state.global_step)

    def _mark_best(self, rule: Rule, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """The history has every measured step, also those before a resume, so the best is always known."""
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
        # The Trainer protects this one from rotation, and `best_global_step` lets it find the folder once it is saved.
        state.best_model_checkpoint, state.best_global_step, state.best_metric = str(checkpoint), step, values[step]
        self._record(BEST, rule, values[step], args, state)
        self._say(f"best {rule.tag} so far is {values[step]:.4g} at step {step}: {checkpoint.name} is kept", state)

    def _record(self, name: str, rule: Rule, value: float, args: TrainingArguments, state: TrainerState) -> None:
        if state.is_world_process_zero:
            assert args.output_dir is not None
            record = {"rule": rule.text, "metric": rule.tag, "value": value, "step": state.global_step}
            record["checkpoint"] = f"checkpoint-{state.global_step}"
            path, content = Path(args.output_dir) / name, json.dumps(record, indent=1).encode()
            self.monitor.observer.attempt(f"is not in {name}", state.global_step, lambda: write_atomic(path, content))

    def _say(self, message: str, state: TrainerState) -> None:
        if state.is_world_process_zero:
            say(f"offleash: guard: {message}")
