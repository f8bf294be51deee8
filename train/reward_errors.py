"""Reward functions whose errors every rank learns.

Each rank calls them with its own completions, and TRL then gathers the rewards: a rank whose function raised would not
come, and the others would wait. So its error is kept, the rank gives rewards that nobody uses, and once the rewards
are gathered all ranks raise the error.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch

from offleash.callbacks.policy.ranks import Ranks
from offleash.eval.errors import ConfigError

RewardFunction = Callable[..., Any]


class RewardErrors:
    """`with RewardErrors(trainer) as errors`: no reward function raises; `errors.share` then raises on every rank.

    Reward models, whose ranks may wait for each other, are called as they are.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.ranks = trainer, Ranks(trainer.accelerator)
        self.functions: list[Any] = trainer.reward_funcs
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        if not self.ranks.is_alone:
            self.trainer.reward_funcs = [
                each if isinstance(each, torch.nn.Module) else self._safe(each) for each in self.functions
            ]
        return self

    def __exit__(self, *raised: object) -> None:
        self.trainer.reward_funcs = self.functions

    def share(self, work: Callable[[], object]) -> None:
        """Raise the first error of any rank on every rank, those of `work`, which runs if there was none, included."""
        self.ranks.on_all(partial(self._after, work), waits=False)

    def _after(self, work: Callable[[], object]) -> None:
        if self.error is not None:
            raise self.error
        work()

    def _safe(self, function: RewardFunction) -> RewardFunction:
        name = getattr(function, "__name__", type(function).__name__)

        if _is_async(function):

            @functools.wraps(function, updated=())
            async def awaited(prompts: Sequence[Any], **columns: Any) -> list[float | None]:
                try:
                    return _checked(await function(prompts=prompts, **columns), name, len(prompts))
                except Exception as error:
                    return self._keep(error, len(prompts))

            return awaited

        @functools.wraps(function, updated=())
        def called(prompts: Sequence[Any], **columns: Any) -> list[float | None]:
            try:
                return _checked(function(prompts=prompts, **columns), name, len(prompts))
            except Exception as error:
                return self._keep(error, len(prompts))

        return called

    def _keep(self, error: Exception, count: int) -> list[float | None]:
        """Later functions may fail because this one did: the first error counts."""
        self.error = self.error or error
        return [0.0] * count


def _is_async(function: Any) -> bool:
    """As TRL tells: functions, partial ones, and objects that are called."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _checked(rewards: Any, name: str, count: int) -> list[float | None]:
    numbers = [None if reward is None else float(reward) for reward in rewards]
    if len(numbers) != count:
        raise ConfigError(
            f"reward {name} gave {len(numbers)} rewards for {count} completions: it must return one for each"
        )
    return numbers
