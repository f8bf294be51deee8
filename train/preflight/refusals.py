"""What training refuses at its start, said before it: as far as the recipe and the machines tell, without a model."""

import difflib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, cast

import numpy as np

from offleash.callbacks.guard import SHORT, SupportGuard
from offleash.callbacks.metrics import support_metrics, token_entropy_tag
from offleash.eval.errors import ConfigError
from offleash.eval.pool.counts import Hits
from offleash.eval.stats.passk import powers_of_two
from offleash.train.forecast.memory import Sharding
from offleash.train.preflight.settings import check_aligned_saves, check_synced_reference
from offleash.train.recipe.config import Recipe

TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow", "swanlab", "comet_ml")
SAMPLED = (
    *("entropy/answer", "entropy/answer_corrected", "support/distinct_correct", "monitor/kl_base_k1"),
    *("verify/response_length", "verify/truncated", "verify/no_answer", "verify/failed"),
    *("monitor/samples", "monitor/seconds", "monitor/seconds_total"),
)
"""Of a measurement, besides what follows from support, k and temperature."""


def refusals(recipe: Recipe, gpus: int) -> list[str]:
    """One line for each setting that training would not start with."""
    checks: list[Callable[[], None]] = [
        lambda: check_aligned_saves(recipe),
        lambda: check_synced_reference(recipe.training),
        lambda: _require_guards(recipe),
        lambda: _require_whole_engines(recipe, gpus),
    ]
    found = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            found.append(str(error))
    return found


def absent_packages(recipe: Recipe, sharding: Sharding) -> list[str]:
    """What the recipe needs and is not installed here, each with the line that installs it."""
    needed = {
        "vllm": recipe.training.use_vllm,
        "peft": recipe.model.use_peft,
        "deepspeed": sharding.startswith("zero"),
    }
    lines = {name: f"pip install 'offleash[{name}]'" for name, asked in needed.items() if asked}
    lines |= {name: f"pip install {name}" for name in TRACKERS if name in recipe.training.report_to}
    return [f"{name} is not installed here: {line}" for name, line in lines.items() if find_spec(name) is None]


def measured_tags(recipe: Recipe) -> set[str]:
    """Of every number that the monitor measures at a step."""
    one = np.ones(1, dtype=np.int64)
    hits = Hits(("",), one, one, one - 1, (None,), one)
    passes = (f"pass_at_k/{k}" for k in powers_of_two(recipe.run.monitor_k))
    return {*support_metrics(hits, hits), *passes, token_entropy_tag(recipe.training.temperature), *SAMPLED}


def _require_guards(recipe: Recipe) -> None:
    run = recipe.run
    if not run.guards:
        return
    if not run.monitor_every:
        raise ConfigError(f"guards {run.guards} need the monitor: set monitor_every to a number of steps")
    known = measured_tags(recipe)
    for rule in SupportGuard(cast(Any, None), run.guards).rules:  # the rules are read without a monitor
        if rule.tag not in known:
            close = difflib.get_close_matches(rule.tag, [*SHORT, *sorted(known)], n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join([*SHORT, *sorted(known)])}"
            raise ConfigError(f"guard {rule.text!r}: there is no metric {rule.tag!r}; {hint}")


def _require_whole_engines(recipe: Recipe, gpus: int) -> None:
    training = recipe.training
    size = training.vllm_tensor_parallel_size
    if training.use_vllm and training.vllm_mode == "colocate" and gpus % size:
        raise ConfigError(f"vllm_tensor_parallel_size {size} does not divide the {gpus} GPUs: each engine takes {size}")
