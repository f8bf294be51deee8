"""The reward functions of a run: the verifier's 1 for a correct completion and 0 for a wrong one, and others beside it.

TRL adds them up, weighted by `reward_weights`, and computes advantages from the sum. A completion on which the verifier
failed gets None from every function: TRL then leaves it out, where it would count it as wrong if another function had
given it a reward.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Task, Verdict, chat_text
from offleash.eval.verify.health import Failures
from offleash.eval.verify.verdicts import verdicts_of
from offleash.train.explorers.metrics import TIMED_OUT, VERIFIER_FAILED
from offleash.train.recipe.reward_names import FORMAT, VERIFIER, find_rewards

RewardFunction = Callable[..., Any]


class VerifierReward:
    """TRL calls it with the local rank's completions and every dataset column; `problem_id` identifies the problem.

    A verifier failure (status "error") gives None, which TRL leaves out of the group's baseline: it never counts as
    wrong. Too many of them end the run with VerifyError. An answer that times out is wrong.
    A completion that does not end in one of `end_token_ids` was truncated at the length limit.
    """

    __name__ = "correct"

    def __init__(self, task: Task, end_token_ids: Collection[int]) -> None:
        self.task = task
        self.end_token_ids = frozenset(end_token_ids)
        self.failures = Failures()
        self.latest: list[Verdict] = []
        self.problems: dict[str, Problem] = {problem.id: problem for problem in task.problems}

    reward_index: int | None = 0

    def problem_id(self, row: Mapping[str, Any]) -> str:
        return str(row["problem_id"])

    def judge(
        self, rows: Sequence[Any], completions: Sequence[Any], ids: Sequence[Any], rewards_bf: torch.Tensor
    ) -> None:
        """Nothing to do: TRL has called it as a reward function."""

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[str | list[dict[str, Any]]],
        completion_ids: Sequence[Sequence[int]],
        problem_id: Sequence[str],
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        del prompts, columns
        truncated = [not ids or ids[-1] not in self.end_token_ids for ids in completion_ids]
        verdicts = verdicts_of(
            self.task.verify, [self.problems[i] for i in problem_id], [chat_text(c) for c in completions], truncated
        )
        self.latest = verdicts
        self.failures.add(problem_id, verdicts)
        self.failures.check()
        rewards = [None if verdict.failed else float(verdict.correct) for verdict in verdicts]
        if log_metric is not None:
            late = sum(verdict.status == "timeout" for verdict in verdicts)
            log_metric(VERIFIER_FAILED.key, rewards.count(None) / max(len(rewards), 1))
            log_metric(TIMED_OUT.key, late / max(len(rewards), 1))
        return rewards


class FormatReward:
    """1 where the verifier found an answer to judge (status "ok"), right or wrong; 0 where it found none.

    So a completion without an answer, a truncated one and one that used up the verifier's time get 0. TRL must call it
    after the verifier, on the same completions: it reads its verdicts.
    """

    __name__ = FORMAT

    def __init__(self, verifier: VerifierReward) -> None:
        self.verifier = verifier

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        verdicts = self.verifier.latest
        assert len(verdicts) == len(completions)
        return [None if verdict.failed else float(verdict.status == "ok") for verdict in verdicts]


def reward_functions(rewards: Sequence[str], verifier: VerifierReward) -> list[RewardFunction]:
    """What TRL calls, in the order of the recipe's `rewards`, which begin with the verifier."""
    ours: dict[str, RewardFunction] = {VERIFIER: verifier, FORMAT: FormatReward(verifier)}
    known = ours | {name: _where_verified(own, verifier) for name, own in find_rewards(rewards).items()}
    return [known[name] for name in rewards]


def _where_verified(function: RewardFunction, verifier: VerifierReward) -> RewardFunction:
    """The same function, with None for each completion on which the verifier failed."""

    def masked(rewards: Sequence[Any]) -> list[Any]:
        if len(rewards) != len(verifier.latest):
            raise ConfigError(
                f"reward {function.__module__}:{function.__name__} gave {len(rewards)} rewards for "
                f"{len(verifier.latest)} completions: it must return one for each"
            )
        return [None if verdict.failed else reward for reward, verdict in zip(rewards, verifier.latest, strict=True)]

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(**given: Any) -> list[Any]:
            return masked(await function(**given))

        return awaited

    @functools.wraps(function)
    def called(**given: Any) -> list[Any]:
        return masked(function(**given))

    return called
