"""A reward function that raises on one of several ranks: its error waits until all of them can learn it."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from offleash.eval.errors import ConfigError
from offleash.train.reward_errors import RewardErrors


def ones(prompts: list[str], **columns: Any) -> list[float | None]:
    return [1, None]


def fails(prompts: list[str], **columns: Any) -> list[float]:
    raise ZeroDivisionError("nothing to divide by")


def too_few(prompts: list[str], **columns: Any) -> list[float]:
    return [1.0]


def words(prompts: list[str], **columns: Any) -> list[Any]:
    return ["good", "bad"]


async def late(prompts: list[str], **columns: Any) -> list[float]:
    raise KeyError("late")


class Called:
    async def __call__(self, prompts: list[str], **columns: Any) -> list[float]:
        raise KeyError("called")


def rewards_of(functions: list[Any], processes: int = 2) -> tuple[list[Any], RewardErrors]:
    """As TRL calls them, on a rank whose others are not asked."""
    accelerator = SimpleNamespace(num_processes=processes, process_index=1, is_main_process=False)
    trainer = SimpleNamespace(accelerator=accelerator, reward_funcs=functions)
    with RewardErrors(trainer) as errors:
        made = [each(prompts=["a", "b"], completions=["c", "d"]) for each in trainer.reward_funcs]
    assert trainer.reward_funcs is functions
    return [asyncio.run(each) if asyncio.iscoroutine(each) else each for each in made], errors


def test_rewards_pass_and_an_error_waits_for_the_exchange():
    assert rewards_of([ones, partial(ones)])[0] == [[1.0, None]] * 2
    made, errors = rewards_of([ones, fails, too_few])
    assert made == [[1.0, None], [0.0, 0.0], [0.0, 0.0]]
    with pytest.raises(ZeroDivisionError, match="nothing to divide by"):
        errors.share(lambda: pytest.fail("there was an error before"))


@pytest.mark.parametrize(
    ("function", "kind", "name"),
    [
        (too_few, ConfigError, "too_few gave 1 rewards for 2"),
        (words, ValueError, "good"),
        (late, KeyError, "late"),
        (partial(late), KeyError, "late"),
        (Called(), KeyError, "called"),
    ],
)
def test_whatever_is_wrong_with_rewards_is_kept(function, kind, name):
    made, errors = rewards_of([function])
    assert made == [[0.0, 0.0]]
    with pytest.raises(kind, match=name):
        errors.share(lambda: None)


def test_one_process_raises_at_once():
    with pytest.raises(ZeroDivisionError):
        rewards_of([fails], processes=1)
