"""Explorers on a trainer that exists: `explore(trainer, explorers)` gives a stock `trl.GRPOTrainer` their hooks.

The trainer's class becomes a subclass of its own class and of `Exploring`, which overrides the methods that the hooks
need; everything else stays. Explorers need a verdict for each rollout, correct or not, and the class of its answer:
from one of the trainer's reward functions, which is not called a second time, or from a Task.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from trl import GRPOTrainer

from offleash.callbacks.policy.trl_seam import text_tokenizer
from offleash.eval.errors import ConfigError
from offleash.eval.images import picture_key
from offleash.eval.problem import Task, Verdict, chat_text, prompt_key
from offleash.eval.tasks.dataset_task import find_answer
from offleash.train.explorers import load_explorers
from offleash.train.explorers.base import Explorer, RolloutVerifier
from offleash.train.explorers.trial import try_instance
from offleash.train.exploring import Exploring
from offleash.train.recipe.explorer_flags import explorer_mapping
from offleash.train.rewards import VerifierReward

Answer = Callable[[str], str | None]
IDS = ("problem_id", "id")
"""Columns that name a problem; without one its prompt does."""


def explore(
    trainer: Any,
    explorers: Any,
    *,
    task: Task | None = None,
    correct: Any = None,
    threshold: float | None = None,
    answer: Answer | Literal[False] | None = None,
) -> Any:
    """Let explorers shape what a `trl.GRPOTrainer` learns. Call it before `trainer.train()`, on every process.

    The trainer's class is changed to a subclass of it. Without explorers, and with `identity`, the trajectory stays
    the same to within rounding: columns of padding are not computed. Explorers that sample training problems
    (rehearsal, anchor, seeding, mode_replay) need a `task`. Those that compute advantages from the verdicts alone
    (pass_at_k, maxrl, ...) are refused where the trainer has several reward functions, which they would ignore.

    Args:
        trainer: a `trl.GRPOTrainer` or a subclass, after its construction.
        explorers: as in a recipe, names or dotted paths with their arguments, `{"focal": {"gamma": 2.0}}`; or a list of
            `Explorer` instances.
        task: the training problems and their verifier, which then gives the verdicts.
        correct: without a task, which of the trainer's reward functions tells correct completions; None: the first.
        threshold: a completion is correct from this reward on; may be left out where rewards are 0 and 1.
        answer: from a completion's text to the class of its answer, None if it has none. By default boxes, answer tags,
            closing phrases and last numbers are looked for. False: answers are not told apart.

    Returns:
        The same trainer.

    Raises:
        ConfigError: for what would not work, before anything is sampled.

    Example:
        >>> from importlib.resources import files
        >>> from datasets import Dataset
        >>> from trl import GRPOConfig, GRPOTrainer
        >>> from offleash.train import explore
        >>> trainer = GRPOTrainer(
        ...     model=str(files("offleash.recipes") / "lab" / "base"),
        ...     reward_funcs=lambda completions, **columns: [float("+" in text) for text in completions],
        ...     train_dataset=Dataset.from_list([{"prompt": f"{n},3,4,5=24:"} for n in range(16)]),
        ...     args=GRPOConfig(
        ...         output_dir="runs/example", max_steps=1, num_generations=4, per_device_train_batch_size=8,
        ...         max_completion_length=20, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
        ...     ),
        ... )
        >>> type(explore(trainer, {"focal": {"gamma": 2.0}})).__name__
        'ExploringGRPOTrainer'
        >>> result = trainer.train()  # doctest: +ELLIPSIS
        {...}
        >>> trainer.state.global_step
        1
    """
    _check_trainer(trainer)
    if task is not None and (correct is not None or threshold is not None or answer is not None):
        raise ConfigError("explore: a task has its own verdicts and answers: leave out correct, threshold and answer")
    chosen = _explorers(explorers, trainer)
    if answer is False and (asking := [type(each).__name__ for each in chosen if each.needs_answers]):
        raise ConfigError(
            f"explore: {asking[0]} depends on answers, and answer=False tells none apart: give a function"
        )
    verifier = _verifier(trainer, task, correct, threshold, answer)
    kind = type(trainer)
    trainer.__class__ = type(f"Exploring{kind.__name__}", (Exploring, kind), {"__module__": kind.__module__})
    try:
        trainer.begin_exploring(verifier, chosen)
    except BaseException:
        trainer.__class__ = kind  # as it was
        for name in ("explorers", "verifier"):
            vars(trainer).pop(name, None)
        raise
    return trainer


def _check_trainer(trainer: Any) -> None:
    if not isinstance(trainer, GRPOTrainer):
        raise ConfigError(f"explore needs a trl.GRPOTrainer, got a {type(trainer).__name__}")
    if isinstance(trainer, Exploring):
        raise ConfigError("explore: this trainer has explorers already; give all of them in one call")
    if trainer.is_in_train or trainer.state.global_step:
        raise ConfigError("explore: training has begun; call it before trainer.train()")


def _explorers(explorers: Any, trainer: Any) -> list[Explorer]:
    given = [explorers] if isinstance(explorers, Explorer) else explorers
    if isinstance(given, list | tuple) and any(isinstance(each, Explorer) for each in given):
        if strange := [each for each in given if not isinstance(each, Explorer)]:
            raise ConfigError(f"explore: give names with arguments, or Explorer instances alone; got {strange[0]!r}")
        for explorer in given:
            if not type(explorer).__module__.startswith("offleash."):
                try_instance(explorer, trainer.args)
        return list(given)
    return load_explorers(explorer_mapping(given), trainer.args)


def _verifier(
    trainer: Any, task: Task | None, correct: Any, threshold: float | None, answer: Answer | Literal[False] | None
) -> RolloutVerifier:
    if task is not None:
        return TaskVerifier(task, [*trainer.eos_token_ids, text_tokenizer(trainer).pad_token_id])
    names, functions = trainer.reward_func_names, trainer.reward_funcs
    if not functions:
        raise ConfigError("explore: the trainer has no reward function: give task=")
    at = next((i for i, own in enumerate(functions) if own is correct), None) if correct is not None else 0
    if at is None:
        raise ConfigError(
            f"explore: correct is not one of the trainer's reward functions ({', '.join(names)}): give one of these, "
            "or a task"
        )
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
        raise ConfigError(f"explore: threshold must be a number, got {threshold!r}")
    if answer is not None and answer is not False and not callable(answer):
        raise ConfigError(f"explore: answer must be a function from text to an answer class, or False; got {answer!r}")
    return RewardVerifier(names[at], at, threshold, answer)


class RewardVerifier:
    """Verdicts from the rewards of one reward function: correct from the threshold on, failed where it gave None."""

    def __init__(
        self, name: str, index: int, threshold: float | None, answer: Answer | Literal[False] | None = None
    ) -> None:
        self.name, self.threshold, self.answer = name, threshold, answer
        self.reward_index: int | None = index
        self.latest: list[Verdict] = []

    @property
    def task(self) -> Task:
        raise ConfigError("this explorer needs the training problems and their verifier: explore(trainer, ..., task=)")

    def problem_id(self, row: Mapping[str, Any]) -> str:
        if (named := next((row[key] for key in IDS if row.get(key) is not None), None)) is not None:
            return str(named)
        if row.get("image") is not None or row.get("images") is not None or "prompt" not in row:
            raise ConfigError(
                "explore: where prompts do not tell problems apart, add a column problem_id to the dataset"
            )
        return hashlib.sha256(prompt_key(row["prompt"]).encode()).hexdigest()[:16]

    def judge(
        self, rows: Sequence[Any], completions: Sequence[Any], ids: Sequence[Any], rewards_bf: torch.Tensor
    ) -> None:
        rewards = rewards_bf[:, self.reward_index].tolist()
        self.latest = [self._verdict(*pair) for pair in zip(rewards, completions, strict=True)]

    def _verdict(self, reward: float, completion: Any) -> Verdict:
        if math.isnan(reward):
            return Verdict(None, False, "error")
        if self.threshold is None and reward not in (0, 1):
            raise ConfigError(
                f"{self.name} returned a reward of {reward:g}: where rewards are not 0 and 1, say from which on a "
                "completion is correct, explore(..., threshold=)"
            )
        text = chat_text(completion)
        found = None if self.answer is False else self.answer(text) if self.answer else find_answer(text)[0]
        if found is not None and not isinstance(found, str):
            raise ConfigError(f"answer must give text or None, got {found!r}")
        return Verdict(found, reward >= (1 if self.threshold is None else self.threshold), "ok")


class TaskVerifier(VerifierReward):
    """A task that judges rollouts beside the trainer's reward functions."""

    def __init__(self, task: Task, end_token_ids: Sequence[int]) -> None:
        super().__init__(task, end_token_ids)
        self.reward_index = None
        self.by_prompt = {picture_key(problem.prompt): problem.id for problem in task.problems}

    def problem_id(self, row: Mapping[str, Any]) -> str:
        named = next((str(row[key]) for key in IDS if row.get(key) is not None), None)
        if named in self.problems:
            return str(named)
        found = self.by_prompt.get(picture_key(row["prompt"]))
        if found is None:
            raise ConfigError(
                f"explore: the prompt {str(row['prompt'])[:60]!r} is not among the problems of {self.task.name!r}: "
                "give the task that the training dataset was made from"
            )
        return found

    def judge(
        self, rows: Sequence[Any], completions: Sequence[Any], ids: Sequence[Any], rewards_bf: torch.Tensor
    ) -> None:
        self([], completions, ids, [self.problem_id(row) for row in rows])
