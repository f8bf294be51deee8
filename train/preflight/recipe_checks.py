"""Problems of a recipe that can be found from the recipe and the number of GPUs, without loading a model."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, cast

from trl import GRPOConfig

from offleash.callbacks.evaluations import check_is_measured, measured_tags
from offleash.callbacks.guard import SHORT, Rule, SupportGuard
from offleash.callbacks.metrics import measured
from offleash.eval.errors import ConfigError, OffleashError
from offleash.train.explorers import load_explorers
from offleash.train.explorers.base import Explorer
from offleash.train.explorers.checks import check_rewards_used, updates_per_rollout
from offleash.train.forecast.hardware import Sharding
from offleash.train.preflight.attention import no_flash_attention
from offleash.train.recipe.config import Recipe, RunConfig

TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow", "swanlab", "comet_ml")


def recipe_problems(recipe: Recipe, gpus: int) -> list[str]:
    """One line for each setting that training would reject."""
    found: list[str] = []
    with collected(found):
        check_aligned_saves(recipe)
    with collected(found):
        check_synced_reference(recipe.training)
    with collected(found):
        check_guards(recipe)
    with collected(found):
        check_best_metric(recipe)
    with collected(found):
        check_engine_size(recipe, gpus)
    return found


@contextmanager
def collected(problems: list[str]) -> Iterator[None]:
    """An error of the block becomes a line of `problems`."""
    try:
        yield
    except OffleashError as error:
        problems.append(str(error))


def check_aligned_saves(recipe: Recipe) -> None:
    """A checkpoint between two updates of the same rollout loses the remaining ones when the run is resumed."""
    training = recipe.training
    updates = updates_per_rollout(training)
    if updates == 1:
        return
    spans = {"save_steps": int(training.save_steps)} if training.save_strategy == "steps" else {}
    if recipe.run.guards or training.metric_for_best_model is not None:
        spans["monitor_every"] = recipe.run.monitor_every
    for key, steps in spans.items():
        if steps % updates:
            raise ConfigError(
                f"{key} is {steps}, but each rollout serves {updates} steps (steps_per_generation x num_iterations / "
                f"gradient_accumulation_steps): choose a multiple, or a resumed run will not follow the same trajectory"
            )


def check_synced_reference(training: GRPOConfig) -> None:
    """TRL does not save the reference that it moves: a resumed run would have another one."""
    if training.sync_ref_model:
        raise ConfigError(
            "sync_ref_model loses its reference when a run is resumed: use explorer: {reference_reset: {every: "
            f"{training.ref_model_sync_steps}, alpha: {training.ref_model_mixup_alpha}, reset_optimizer: false}}}}"
        )


def check_explorers(recipe: Recipe) -> list[Explorer]:
    """The recipe's explorers, those of the user's own tried on rollouts made by hand.

    Raises ConfigError for what they do not work with.
    """
    run, training = recipe.run, recipe.training
    explorers = load_explorers(run.explorers, training)
    for explorer in explorers:
        explorer.check(training)
    check_rewards_used(explorers, run.rewards, training.reward_weights or [1.0] * len(run.rewards), training)
    return explorers


def absent_packages(recipe: Recipe, sharding: Sharding) -> list[str]:
    """One line for each package that the recipe needs and that is missing here, with the command to install it."""
    needed = {
        "vllm": recipe.training.use_vllm,
        "peft": recipe.model.use_peft,
        "deepspeed": sharding.startswith("zero"),
    }
    lines = {name: f"pip install 'offleash[{name}]'" for name, asked in needed.items() if asked}
    lines |= {name: f"pip install {name}" for name in TRACKERS if name in recipe.training.report_to}
    found = [f"{name} is not installed here: {line}" for name, line in lines.items() if find_spec(name) is None]
    if no_flash_attention(asked := recipe.model.attn_implementation):
        found.append(f"{asked} is not installed here: pip install kernels (or flash-attn)")
    return found


def check_guards_have_monitor(run: RunConfig) -> None:
    if run.guards and not run.monitor_every:
        raise ConfigError(f"guards {run.guards} need the monitor: set monitor_every to a number of steps")


def check_guards(recipe: Recipe) -> None:
    run = recipe.run
    check_guards_have_monitor(run)
    if not run.guards:
        return
    known = {metric.tag for metric in measured(run.monitor_k, recipe.training.temperature, run.monitor_successes)}
    for rule in _rules(run):
        if rule.tag not in known:
            close = difflib.get_close_matches(rule.tag, [*SHORT, *sorted(known)], n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join([*SHORT, *sorted(known)])}"
            raise ConfigError(f"guard {rule.text!r}: no metric {rule.tag!r}; {hint}")


def check_best_metric(recipe: Recipe) -> None:
    """What the monitor measures is all the evaluation that a run of a recipe has."""
    run, training = recipe.run, recipe.training
    if training.eval_strategy != "no":
        raise ConfigError(
            f"eval_strategy is {training.eval_strategy}, but a recipe has no evaluation dataset: the monitor measures "
            "every monitor_every steps, so leave it out"
        )
    if (named := training.metric_for_best_model) is None:
        return
    if not run.monitor_every:
        raise ConfigError(f"metric_for_best_model ({named}) needs the monitor: set monitor_every to a number of steps")
    known = measured_tags(run.monitor_k, training.temperature, run.monitor_exact, run.monitor_successes)
    check_is_measured(named, known)
    if training.save_strategy == "no":
        raise ConfigError(f"metric_for_best_model ({named}) keeps no checkpoint with save_strategy no: set it to best")
    if any(rule.compare == "best" for rule in _rules(run)):
        raise ConfigError(f"both metric_for_best_model ({named}) and a guard choose the best checkpoint: remove one")


def _rules(run: RunConfig) -> list[Rule]:
    return SupportGuard(cast(Any, None), run.guards).rules  # the rules are read without a monitor


def check_engine_size(recipe: Recipe, gpus: int) -> None:
    training = recipe.training
    size = training.vllm_tensor_parallel_size
    if training.use_vllm and training.vllm_mode == "colocate" and gpus % size:
        raise ConfigError(f"vllm_tensor_parallel_size {size} does not divide the {gpus} GPUs: each engine takes {size}")
