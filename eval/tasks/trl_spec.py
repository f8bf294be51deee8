"""Any task as a GRPOTrainer takes it: a dataset of its prompts, and its verifier as a reward function."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.images import has_images
from offleash.eval.problem import Task, chat_text
from offleash.eval.verify.reward_call import Reward
from offleash.eval.verify.verdicts import verdicts_of


@dataclass(frozen=True, slots=True)
class TrlSpec:
    """`GRPOTrainer(train_dataset=spec.train_dataset, reward_funcs=spec.reward_funcs, ...)`."""

    train_dataset: Any
    """A `datasets.Dataset`."""
    reward_funcs: list[Reward]


def for_trl(task: Task) -> TrlSpec:
    """The task's prompts and its verifier for TRL. A task made from a dataset gives back what it was made from.

    The reward is 1 for a correct completion, 0 for a wrong one, and None where the verifier itself failed.

    >>> from offleash.eval import for_trl, load_task
    >>> spec = for_trl(load_task("countdown", split="train", n=4))
    >>> spec.train_dataset.column_names
    ['prompt', 'problem_id']
    >>> row = spec.train_dataset[0]
    >>> spec.reward_funcs[0](completions=["no idea"], problem_id=[row["problem_id"]])
    [0.0]
    """
    if hasattr(task, "train_dataset") and hasattr(task, "reward_funcs"):
        return TrlSpec(task.train_dataset, task.reward_funcs)
    if any(map(has_images, task.problems)):
        raise ConfigError(
            f"task {task.name!r} has images: train on it with a recipe, or make it with task_from_dataset"
        )
    from datasets import Dataset

    problems = {problem.id: problem for problem in task.problems}

    def correct(completions: Sequence[Any], problem_id: Sequence[str], **columns: Any) -> list[float | None]:
        verdicts = verdicts_of(task.verify, [problems[one] for one in problem_id], [*map(chat_text, completions)])
        return [None if verdict.failed else float(verdict.correct) for verdict in verdicts]

    rows = [{"prompt": problem.prompt, "problem_id": problem.id} for problem in task.problems]
    return TrlSpec(Dataset.from_list(rows), [correct])
