"""A verifier as TRL's reward: 1 for a correct completion, 0 for a wrong one, None where the verifier itself failed."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from offleash.eval.problem import Problem, Task, Verdict, chat_text
from offleash.eval.verify.health import Failures
from offleash.eval.verify.verdicts import verdicts_of
from offleash.train.explorers.metrics import TIMED_OUT, VERIFIER_FAILED


class VerifierReward:
    """TRL calls it with the local rank's completions and every dataset column; `problem_id` identifies the problem.

    A verifier failure (status "error") gives None, which TRL leaves out of the group's baseline: it never counts as
    wrong. Too many of them (1 %) end the run with VerifyError. An answer that times out is wrong.
    A completion that does not end in one of `end_token_ids` was truncated at the length limit.
    """

    __name__ = "correct"

    def __init__(self, task: Task, end_token_ids: Collection[int]) -> None:
        self.task = task
        self.end_token_ids = frozenset(end_token_ids)
        self.failures = Failures()
        self.latest: list[Verdict] = []
        self.problems: dict[str, Problem] = {problem.id: problem for problem in task.problems}

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
        self.failures.add(verdicts)
        self.failures.check()
        rewards = [None if verdict.failed else float(verdict.correct) for verdict in verdicts]
        if log_metric is not None:
            late = sum(verdict.status == "timeout" for verdict in verdicts)
            log_metric(VERIFIER_FAILED.key, rewards.count(None) / max(len(rewards), 1))
            log_metric(TIMED_OUT.key, late / max(len(rewards), 1))
        return rewards
