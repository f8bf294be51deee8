"""A reward function gets what TRL gives it, and whatever it returns is a number or None per completion, or refused."""

import asyncio
import functools

import numpy as np
import pytest
import torch

from offleash.eval.errors import ConfigError, VerifyError
from offleash.eval.verify.reward_call import call_reward, check_reward_function

CHAT = [{"role": "user", "content": "2 + 2?"}]


def test_gets_prompts_completions_columns_and_what_trl_adds():
    seen = {}

    def reward(**given):
        seen.update(given)
        given["log_metric"]("name", 1.0)
        given["log_extra"]("column", ["x"])
        return [1]

    assert call_reward(reward, ["2 + 2?"], ["4"], {"gold": ["4"]}) == [1.0]
    assert set(seen) == {
        *("prompts", "completions", "completion_ids", "gold", "trainer_state", "log_extra", "log_metric"),
    }
    assert (seen["prompts"], seen["completions"], seen["gold"]) == (["2 + 2?"], ["4"], ["4"])
    assert seen["trainer_state"].global_step == 0


def test_the_keywords_are_those_of_trl():
    import inspect

    from trl import GRPOTrainer

    source = inspect.getsource(GRPOTrainer._calculate_rewards)
    for name in ("prompts=prompts", "completions=completions", "completion_ids=", '"trainer_state"', '"log_extra"'):
        assert name in source
    assert 'key not in ["prompt", "completion", "completion_ids"]' in source


def test_a_chat_gives_messages():
    def reward(completions, **columns):
        return [len(reply[0]["content"]) for reply in completions]

    assert call_reward(reward, [CHAT], ["four"], {}) == [4.0]


class Async:
    async def __call__(self, completions, **columns):
        await asyncio.sleep(0)
        return [1.0 for _ in completions]


async def plain_async(completions, offset=0, **columns):
    return [offset for _ in completions]


@pytest.mark.parametrize("reward", [Async(), functools.partial(Async()), functools.partial(plain_async, offset=1)])
def test_async_functions_are_awaited_also_where_a_loop_is_running(reward):
    async def notebook():
        return call_reward(reward, ["a"], ["b"], {})

    assert call_reward(reward, ["a"], ["b"], {}) == [1.0] == asyncio.run(notebook())


@pytest.mark.parametrize(
    ("returned", "rewards"),
    [
        ([True, None], [1.0, None]),
        ([np.float32(0.5), float("nan")], [0.5, None]),
        (np.array([0.0, 1.0]), [0.0, 1.0]),
        (torch.tensor([0.0, 1.0]), [0.0, 1.0]),
        ((1, 2), [1.0, 2.0]),
    ],
)
def test_numbers_of_any_library_count_and_nan_is_none(returned, rewards):
    assert call_reward(lambda **given: returned, ["a", "b"], ["c", "d"], {}) == rewards


@pytest.mark.parametrize("returned", [None, 1.0, "11", {"a": 1, "b": 2}, [1.0], ["1.0", "0.0"], [[1], [0]]])
def test_anything_else_is_refused_by_the_name_of_the_function(returned):
    def my_reward(**given):
        return returned

    with pytest.raises(VerifyError, match="my_reward returned"):
        call_reward(my_reward, ["a", "b"], ["c", "d"], {})


def test_token_ids_are_not_known_and_to_read_them_is_refused():
    def short(completions, completion_ids, **columns):
        return [float(len(ids) < 5) for ids in completion_ids]

    with pytest.raises(ConfigError, match="short reads completion_ids"):
        call_reward(short, ["a"], ["b"], {})


@pytest.mark.parametrize("wrong", ["org/model", torch.nn.Linear(1, 1), Async, 3, None])
def test_a_reward_model_a_class_or_no_function_is_refused(wrong):
    with pytest.raises(ConfigError, match="correct is"):
        check_reward_function(wrong)
