"""The reward functions that a recipe names: `rewards: [verifier, format, my_module:short]`.

`verifier` is the task's and always comes first; TRL's `reward_weights` has a weight for each, in the same order. The
functions themselves are made in `train/rewards.py`.
"""

import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.registry import find_keyword_function

VERIFIER, FORMAT = "verifier", "format"
COLUMNS = ("problem_id", "gold")
"""Of the training dataset, besides the prompt: TRL gives them to every reward function."""
_GIVEN = ("prompts", "completions", "completion_ids", *COLUMNS, "trainer_state", "log_extra", "log_metric")


def check_reward_names(rewards: Any) -> None:
    """Raise ConfigError unless it is a list of different known names that begins with the verifier."""
    if not isinstance(rewards, list | tuple) or not all(isinstance(name, str) for name in rewards):
        raise ConfigError(f"rewards must be a list such as [verifier, format, my_module:short], got {rewards!r}")
    for name in rewards:
        if name not in (VERIFIER, FORMAT) and ":" not in name:
            close = difflib.get_close_matches(name, (VERIFIER, FORMAT), n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {VERIFIER} and {FORMAT}"
            raise ConfigError(f"rewards: no reward is called {name!r}; {hint} (your own: my_module:my_function)")
        if rewards.count(name) > 1:
            raise ConfigError(f"rewards: {name!r} is duplicated")
    if list(rewards[:1]) != [VERIFIER]:
        raise ConfigError(f"rewards must begin with verifier, got {list(rewards)}: its weight may be 0")


def check_reward_weights(rewards: Sequence[str], weights: Sequence[float] | None) -> None:
    """Raise ConfigError unless there is a finite weight for each reward; None means 1 for all of them."""
    if weights is None:
        return
    if len(weights) != len(rewards):
        raise ConfigError(
            f"reward_weights has {len(weights)} values for {len(rewards)} rewards ({', '.join(rewards)}): give one each"
        )
    for name, weight in zip(rewards, weights, strict=True):
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ConfigError(f"reward_weights: that of {name} must be a number, got {weight!r}")
    if not any(weights):
        raise ConfigError(f"reward_weights are all 0: nothing would be learned from {', '.join(rewards)}")


def find_rewards(rewards: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Your own functions among the rewards, by name. Imports their modules."""
    found = {name: find_keyword_function("reward", name, _GIVEN[:3], _GIVEN) for name in rewards if ":" in name}
    told = {"correct": VERIFIER, FORMAT: FORMAT}  # by these names TRL logs them
    for name, function in found.items():
        if (other := told.setdefault(function.__name__, name)) != name:
            raise ConfigError(
                f"rewards: {name} and {other} would both be logged as {function.__name__!r}: rename the function"
            )
    return found
