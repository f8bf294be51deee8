"""Explorers on a stock trainer: nothing changes that no explorer changes, and verdicts come from its own rewards."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from offleash.eval.errors import ConfigError
from offleash.eval.tasks import load_task
from offleash.train import Explorer, explore
from offleash.train.attach import RewardVerifier

TASK = load_task("countdown", split="train", n=32)


def ones(completions: Any, **columns: Any) -> list[float]:
    """Not 0 and 1: needs a threshold."""
    return [text.count("1") / 2 for text in completions]


def has_plus(completions: Any, **columns: Any) -> list[float]:
    return [float("+" in text) for text in completions]


class Mine(GRPOTrainer):
    """A subclass with an override of its own, below ours in the order of classes."""

    scored = 0

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.scored += 1
        return super()._generate_and_score_completions(inputs)


@pytest.fixture
def stock(tmp_path: Path, lab_base: Path):
    def make(name: str = "run", rewards: Any = has_plus, kind: Any = GRPOTrainer, **settings: Any) -> Any:
        given: dict[str, Any] = {
            **{"output_dir": str(tmp_path / name), "max_steps": 2, "learning_rate": 1e-3, "beta": 0.0, "seed": 3},
            **{"num_generations": 4, "per_device_train_batch_size": 16, "max_completion_length": 20},
            **{"logging_steps": 1, "save_strategy": "no", "report_to": "none", "bf16": False, "use_cpu": True},
            **{"gradient_checkpointing": False, "disable_tqdm": True},
        }
        return kind(
            model=str(lab_base),
            reward_funcs=rewards,
            args=GRPOConfig(**{**given, **settings}),
            train_dataset=Dataset.from_list([{"prompt": problem.prompt} for problem in TASK.problems]),
        )

    return make


def without_ours(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if not key.startswith("explorer/")} for row in rows]


class Watch(Explorer):
    """Changes nothing, and keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        self.seen.append(rollouts)
        return advantages_pg


def test_without_explorers_and_with_the_identity_a_stock_trainer_trains_the_same(stock, trajectory) -> None:
    rewards = [ones, has_plus]
    trainers = [stock(name, rewards, reward_weights=[1.0, 0.3]) for name in ("stock", "none", "identity")]
    for trainer, explorers in zip(trainers[1:], ({}, {"identity": {}}), strict=True):
        assert explore(trainer, explorers, threshold=1) is trainer
    plain, none, identity = [], [], []
    for trainer, rows in zip(trainers, (plain, none, identity), strict=True):
        torch.manual_seed(3)
        trainer.train()
        rows += trajectory(trainer)
    assert none == plain
    assert without_ours(identity) == plain
    assert all(row["explorer/advantage_change_abs"] == 0 for row in identity)


@pytest.mark.long
def test_verdicts_are_those_of_the_reward_function_and_answers_those_of_the_function(stock) -> None:
    watch = Watch()
    trainer = stock(rewards=[has_plus, ones], max_steps=1)
    explore(trainer, [watch], correct=ones, threshold=0.5, answer=lambda text: text[:2] or None)
    trainer.train()
    (rollouts,) = watch.seen
    completions = list(trainer._logs["completion"])
    assert rollouts.rewards_pg.flatten().tolist() == [float("1" in text) for text in completions]
    assert [a for answers in rollouts.answers_pg for a in answers] == [text[:2] or None for text in completions]
    assert len(set(rollouts.problem_ids)) == 4


@pytest.mark.long
def test_a_task_gives_its_own_verdicts_by_prompt(stock) -> None:
    watch = Watch()
    trainer = stock(rewards=ones, max_steps=1)
    explore(trainer, [watch], task=TASK)
    trainer.train()
    (rollouts,) = watch.seen
    by_id = {problem.id: problem for problem in TASK.problems}
    problems = [by_id[name] for name in rollouts.problem_ids for _ in range(4)]
    verdicts = TASK.verify(problems, list(trainer._logs["completion"]))
    assert rollouts.rewards_pg.flatten().tolist() == [float(verdict.correct) for verdict in verdicts]


@pytest.mark.long
def test_an_explorer_changes_a_stock_run_and_its_state_is_resumed(stock, trajectory, tmp_path) -> None:
    settings = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    whole = explore(stock("whole", **settings), {"outcome_ucb": {"weight": 0.5}})
    whole.train()
    assert any(row["explorer/advantage_change_abs"] > 0 for row in trajectory(whole))
    assert (tmp_path / "whole" / "checkpoint-2" / "outcome_counts.json").exists()
    again = explore(stock("again", **settings), {"outcome_ucb": {"weight": 0.5}})
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert trajectory(again)[-1] == trajectory(whole)[-1]


@pytest.mark.long
def test_a_subclass_keeps_its_own_overrides(stock) -> None:
    trainer = explore(stock(kind=Mine, max_steps=1), {"focal": {}})
    assert isinstance(trainer, Mine)
    trainer.train()
    assert trainer.scored == 1


@pytest.mark.long
def test_an_explorer_that_samples_training_problems_works_with_a_task(stock) -> None:
    trainer = explore(stock(max_steps=1), {"mode_replay": {}}, task=TASK)
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.parametrize(
    ("explorers", "given", "told"),
    [
        ({"pass_at_k": {"k": 2}}, {"rewards": [has_plus, ones]}, "SetObjective|PassAtK.*1 x ones"),
        ({"mode_replay": {}}, {}, "task="),
        ({"outcome_batch": {}}, {"answer": False}, "OutcomeBatch.*answer=False"),
        ({"focal": {}}, {"correct": math.sqrt}, "has_plus"),
        ({"focal": {}}, {"task": TASK, "threshold": 1.0}, "task"),
        ({"focall": {}}, {}, "focal"),
        ([Watch(), "focal"], {}, "'focal'"),
        ({"focal": {}}, {"threshold": "high"}, "'high'"),
        ({"focal": {}}, {"answer": "boxed"}, "'boxed'"),
    ],
)
def test_what_would_not_work_is_refused_and_the_trainer_stays_as_it_was(stock, explorers, given, told) -> None:
    trainer = stock(rewards=given.pop("rewards", has_plus))
    callbacks = len(trainer.callback_handler.callbacks)
    with pytest.raises(ConfigError, match=told):
        explore(trainer, explorers, **given)
    assert type(trainer) is GRPOTrainer
    assert not hasattr(trainer, "explorers")
    assert len(trainer.callback_handler.callbacks) == callbacks


def test_only_a_stock_trainer_before_its_training_is_taken(stock) -> None:
    with pytest.raises(ConfigError, match="GRPOTrainer"):
        explore(object(), {})
    trainer = explore(stock(), {})
    with pytest.raises(ConfigError, match="already"):
        explore(trainer, {"focal": {}})
    used = stock("used")
    used.state.global_step = 3
    with pytest.raises(ConfigError, match="begun"):
        explore(used, {"focal": {}})


def test_rewards_other_than_0_and_1_need_a_threshold() -> None:
    verifier = RewardVerifier("ones", 0, None)
    with pytest.raises(ConfigError, match=r"ones returned a reward of 0.5.*threshold"):
        verifier.judge([{}], ["x"], [[1]], torch.tensor([[0.5]]))
    verifier = RewardVerifier("ones", 1, 0.5, answer=False)
    verifier.judge([{}] * 3, ["x"] * 3, [[1]] * 3, torch.tensor([[0.0, 0.5], [0.0, 0.4], [0.0, math.nan]]))
    assert [(v.correct, v.failed, v.answer) for v in verifier.latest] == [
        *((True, False, None), (False, False, None), (False, True, None))
    ]


def test_problems_are_told_apart_by_their_id_or_prompt_and_never_by_half_a_prompt() -> None:
    verifier = RewardVerifier("ones", 0, None)
    assert verifier.problem_id({"prompt": "a", "id": 7}) == "7"
    chat = [[{"role": "user", "content": text}] for text in ("a", "a", "b")]
    first, same, other = (verifier.problem_id({"prompt": prompt}) for prompt in chat)
    assert first == same != other
    with pytest.raises(ConfigError, match="problem_id"):
        verifier.problem_id({"prompt": "What is this?", "images": ["png"]})
