"""What decides whether a draw is correct: the task's verifier, or the reward of the whole rollout.

An environment, and a reward function that asks for it, see more than a text. Their reward is taken while the rollout is
at hand, as the trainer takes it, and comes with the draw; the task says what verdict it means.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from offleash.callbacks.policy.sampler import Draw
from offleash.eval.problem import Problem, RewardedTask, Task, Verdict
from offleash.eval.transcript import final_turn
from offleash.eval.verify.verdicts import verdicts_of


def reward_of(task: Task) -> Callable[..., Any] | None:
    """The reward function that judges the task's rollouts; None if a verifier does."""
    return task.correct if isinstance(task, RewardedTask) else None


def dataset_rows(task: Task) -> list[dict[str, Any]]:
    """The problems as rows of a training dataset: those the task was made from, or prompts with their metadata."""
    rows = getattr(task, "train_dataset", None) if isinstance(task, RewardedTask) else None
    if rows is not None:
        return [dict(row) for row in rows]
    return [{**problem.meta, "prompt": problem.prompt} for problem in task.problems]


def judge_rollouts(task: Task, problems: Sequence[Problem], draws: Sequence[Draw]) -> list[Verdict]:
    """A verdict on each rollout of several turns: by its reward, or by what the policy says last."""
    last, cut = [final_turn(draw.completion) for draw in draws], [draw.truncated for draw in draws]
    if not isinstance(task, RewardedTask):
        return verdicts_of(task.verify, problems, last, cut)
    rewards = [_known(draw.reward) for draw in draws]
    return [task.verdict(*one) for one in zip(rewards, last, cut, strict=True)]


def _known(reward: float | None) -> float | None:
    return None if reward is None or math.isnan(reward) else reward
