"""Rollouts of several turns through TRL: tools, environments and rollout functions, as in training, without a trace."""

import asyncio
import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from transformers.utils import get_json_schema

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_engine import engine_processes, is_server
from offleash.callbacks.policy.trl_internals import (
    EnvironmentInternals,
    TrainerInternals,
    holding,
    internals_of,
    weight_shards,
)
from offleash.eval.errors import MonitorError


def rollout_features(trainer: PolicyTrainer) -> list[str]:
    """Which arguments of the trainer make its rollouts more than one turn of the model.

    Relies on `tools`, which holds those of environments too, `environment_factories` and `rollout_func`.
    """
    inside = internals_of(trainer)
    given = {
        "rollout_func": inside.rollout_func is not None,
        "environment_factory": inside.environment_factories is not None,
        "tools": bool(inside.tools) and inside.environment_factories is None,
    }
    return [name for name, is_given in given.items() if is_given]


class Rollouts(NamedTuple):
    """What the trainer's full generation gave, row by row."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    written: list[list[int]]
    """1 for a token of the policy, 0 for one that a tool, an environment or a rollout function put in."""
    completions: list[Any]
    """Chat messages, or text where prompts are text."""
    rewards: list[float] | None
    """NaN where the reward function returned None."""


def roll_out(
    trainer: PolicyTrainer,
    rows: Sequence[dict[str, Any]],
    num_generations: int,
    environments: dict[str | None, list[Any]],
    reward: Callable[..., Any] | None,
) -> Rollouts:
    """Roll out rows of the dataset's columns, which already stand `num_generations` times each, as in training.

    The rollouts play in `environments`, instances by name of the factory, which are added to as needed. Nothing is
    logged and nothing of the trainer's own rollouts is touched. Collective: the same number of rows on every rank.

    Relies on `_generate_and_score_completions` handing out and resetting environments and then calling `_generate`,
    which runs tools and rollout functions, counts in `_metrics` and `state.num_input_tokens_seen`, and, outside of
    training, has `num_generations_eval` equal prompts in a row; on `_calculate_rewards` for what a reward is called
    with. What these leave on the trainer: `environments`, `_batch_environments` and the tools of each row.
    """
    inside = internals_of(trainer)
    drawn = holding(
        trainer,
        num_generations=num_generations,
        # A server draws several completions of the first of so many prompts; environments may start differently.
        num_generations_eval=num_generations if inside.environment_factories is None else 1,
        environments=None,
        _environment_pool=environments,
        _batch_environments=None,
        _sync_tool_dicts=None,
        _async_tool_dicts=None,
        _metrics={mode: defaultdict(list) for mode in inside._metrics},
        _pending_extra_logs=defaultdict(list),
        _pending_metrics=defaultdict(list),
    )
    with drawn, holding(trainer.state, num_input_tokens_seen=trainer.state.num_input_tokens_seen):
        played = copy.deepcopy(list(rows))
        prompts, generated = _generated(inside, played)
        prompt_ids, completion_ids, written, completions, _, extra, _, tool_images = generated
        if any(tool_images):
            raise MonitorError("a tool returned an image: the monitor cannot score rollouts with images of tools")
        rewards = None
        if reward is not None:
            played = [{**row, **_extra_fields(extra, place)} for place, row in enumerate(played)]
            rewards = _rewards(inside, reward, played, prompts, completions, completion_ids)
    return Rollouts(
        prompt_ids, completion_ids, written or [[1] * len(ids) for ids in completion_ids], completions, rewards
    )


class _Generated(BaseException):
    """Leaves TRL's method, which would go on to score, once the rollouts are there."""


def _generated(inside: TrainerInternals, rows: list[dict[str, Any]]) -> tuple[list[Any], tuple[Any, ...]]:
    """The prompts, which environments may have added to, and what `_generate` returned for them."""
    generate = inside._generate

    def generate_only(prompts: list[Any]) -> None:
        raise _Generated(prompts, generate(prompts))

    with holding(inside, _generate=generate_only):
        try:
            inside._generate_and_score_completions(rows)
        except _Generated as done:
            prompts, generated = done.args
            return prompts, generated
    raise MonitorError(f"{type(inside).__name__} does not generate through TRL's _generate: the monitor cannot sample")


def _extra_fields(extra: Mapping[str, Any], place: int) -> dict[str, Any]:
    """What a rollout function returned beyond tokens, which reward functions see as columns."""
    return {
        name: values[place] if isinstance(values, list) else values
        for name, values in extra.items()
        if not isinstance(values, list) or place < len(values)
    }


def _rewards(
    inside: TrainerInternals, reward: Callable[..., Any], rows: list[dict[str, Any]], *made: Any
) -> list[float]:
    own = [place for place, other in enumerate(inside.reward_funcs) if other is reward]
    processing_class = inside.reward_processing_classes[own[0]] if own else None
    called = reward if own else _without_loop(reward)
    with holding(
        inside, reward_funcs=[called], reward_func_names=["monitor"], reward_processing_classes=[processing_class]
    ):
        rewards = inside._calculate_rewards(rows, *made)
    first = inside.accelerator.process_index * len(rows)
    # TRL keeps them in 32 bits, where 0.7 is less than 0.7.
    return [float(f"{value:.7g}") for value in rewards[first : first + len(rows), 0].tolist()]


def _without_loop(reward: Callable[..., Any]) -> Callable[..., Any]:
    """A reward function that is not the trainer's: TRL has an event loop only where one of its own is async."""

    def called(**columns: Any) -> Any:
        returned = reward(**columns)
        return asyncio.run(returned) if inspect.iscoroutine(returned) else returned

    return called


def rollout_settings(trainer: PolicyTrainer) -> dict[str, Any]:
    """What rollouts of several turns depend on beyond the model, the prompts and the sampling settings.

    Relies on `_env_tools`, `max_tool_calling_iterations`, and the template and its arguments as TRL uses them.
    """
    inside = internals_of(trainer)
    factories = inside.environment_factories or {}
    by_environment = cast(EnvironmentInternals, trainer)._env_tools if factories else {None: inside.tools}
    return {
        "tools": {str(name): [get_json_schema(tool) for tool in tools] for name, tools in by_environment.items()},
        "iterations": inside.max_tool_calling_iterations,
        "chat_template": inside.chat_template,
        "chat_template_kwargs": inside.chat_template_kwargs,
        "code": [*([] if factories else inside.tools), *factories.values(), *filter(None, [inside.rollout_func])],
    }


def waits_at_every_turn(trainer: PolicyTrainer) -> str | None:
    """The setting by which ranks wait for each other whenever one generates; None if they do not.

    ZeRO-3 and FSDP gather weights to generate.
    """
    if trainer.accelerator.num_processes == 1:
        return None
    if trainer.use_vllm and is_server(trainer):
        return "vllm_mode=server"
    if engine_processes(trainer) > 1:
        return "vllm_tensor_parallel_size"
    return weight_shards(trainer)
