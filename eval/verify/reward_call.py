"""A reward function, called as TRL's GRPOTrainer calls it.

Read against `_calculate_rewards` of trl 1.16: `prompts`, `completions` (messages if the prompt is a chat),
`completion_ids`, every other column of the dataset as a keyword with one value per completion, `trainer_state`,
`log_extra` and `log_metric`; it may be async. None, or NaN, means that the function does not apply.
"""

import asyncio
import functools
import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from offleash.eval.errors import ConfigError, VerifyError
from offleash.eval.problem import Messages

Reward = Callable[..., Any]
GIVEN = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not pass on."""


def reward_name(function: Any) -> str:
    """As TRL names its column of rewards."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def check_reward_function(function: Any, argument: str = "correct") -> None:
    """Raise ConfigError for what is not a function of completions: a reward model, or the name of one."""
    torch = sys.modules.get("torch")
    if isinstance(function, str) or (torch is not None and isinstance(function, torch.nn.Module)):
        what = repr(function) if isinstance(function, str) else type(function).__name__
        raise ConfigError(
            f"{argument} is a reward model ({what}): its scores say nothing about right and wrong. Give a function "
            "that tells correct completions, correct=my_function"
        )
    if inspect.isclass(function) or not callable(function):
        kind = "the class" if inspect.isclass(function) else "a value of type"
        name = reward_name(function) if inspect.isclass(function) else type(function).__name__
        raise ConfigError(f"{argument} is {kind} {name}: give a function, or an object that can be called")


def call_reward(
    function: Reward,
    prompts: Sequence[str | Messages],
    completions: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
    loop: asyncio.AbstractEventLoop | None = None,
) -> list[float | None]:
    """One reward per completion, None where the function does not apply.

    `loop` runs an async function; without one it runs on a thread of its own. Whatever the function raises is raised;
    VerifyError, naming it, if it returns something else than one number or None per completion.
    """
    given = {
        "prompts": list(prompts),
        "completions": [_as_trl(*pair) for pair in zip(prompts, completions, strict=True)],
        "completion_ids": _UnknownIds(reward_name(function)),
        **columns,
        "trainer_state": _state(),
        "log_extra": _ignore,
        "log_metric": _ignore,
    }
    returned = function(**given)
    if inspect.isawaitable(returned):
        returned = asyncio.run_coroutine_threadsafe(_awaited(returned), loop or _own_loop()).result()
    return _rewards(returned, len(prompts), reward_name(function))


def _as_trl(prompt: str | Messages, completion: str) -> str | Messages:
    return completion if isinstance(prompt, str) else [{"role": "assistant", "content": completion}]


def _rewards(returned: Any, count: int, name: str) -> list[float | None]:
    if isinstance(returned, str | Mapping) or not hasattr(returned, "__iter__"):
        raise VerifyError(f"{name} returned {_shown(returned)}: it must return a list, one reward per completion")
    rewards = list(returned)
    if len(rewards) != count:
        raise VerifyError(
            f"{name} returned {len(rewards)} rewards for {count} completions: it must return one for each"
        )
    return [_number(reward, name) for reward in rewards]


def _number(reward: Any, name: str) -> float | None:
    """Numbers of Python, numpy and torch."""
    if reward is None:
        return None
    try:
        value = math.nan if isinstance(reward, str | bytes) else float(reward)
    except (TypeError, ValueError):
        value = None
    if value is None or isinstance(reward, str | bytes):
        raise VerifyError(f"{name} returned {_shown(reward)} as a reward: it must be a number, or None")
    return None if math.isnan(value) else value


def _shown(value: Any) -> str:
    return f"{value!r:.60} ({type(value).__name__})"


class _UnknownIds(Sequence[list[int]]):
    """The token ids of completions that are known as text. Not to read them is fine."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _refuse(self) -> ConfigError:
        return ConfigError(
            f"{self.name} reads completion_ids, which are not known of stored completions: a verdict must depend on "
            "the text alone. Give another function as correct=..."
        )

    def __getitem__(self, index: Any) -> Any:
        raise self._refuse()

    def __len__(self) -> int:
        raise self._refuse()

    def __iter__(self) -> Iterator[list[int]]:
        raise self._refuse()


def _ignore(*args: Any, **kwargs: Any) -> None:
    """In place of TRL's `log_extra` and `log_metric`: what the monitor samples is no part of the training log."""


def _state() -> Any:
    """That of a run at its first step: a verdict must not change as training goes on."""
    from transformers import TrainerState

    return TrainerState(max_steps=1)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


@functools.cache
def _own_loop() -> asyncio.AbstractEventLoop:
    """On a thread of its own, as in TRL: a notebook's own loop is running already."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="offleash-rewards", daemon=True).start()
    return loop
