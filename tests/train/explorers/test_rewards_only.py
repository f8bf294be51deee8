"""Which explorers' advantages follow from the group's rewards alone: what they declare is what they do.

On this rests the prediction that they share one path of the distribution over correct answers at equal pass@1.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from offleash.train.explorers import EXPLORERS, find_explorer
from offleash.train.explorers.base import Explorer
from offleash.train.trainer import ExploringTrainer
from offleash.train.variants.planned.inertness import ANSWER_AWARE, REWARD_ONLY

REWARDS_ONLY = {name for name in EXPLORERS if find_explorer(name).rewards_only}
OBSERVERS = {"mode_replay", "reference_reset", "seeding"}
"""They read rollouts in `advantages` and return them unchanged; they act elsewhere."""
ARGUMENTS: dict[str, dict[str, Any]] = {"pass_at_k": {"k": 2}, "pkpo": {"k": 2}, "reference_reset": {"every": 2}}
HOOKS = ("collect", "traces", "token_advantages", "extra_loss", "after_step")


def shaping() -> list[str]:
    """Explorers with a hook on whole rollouts."""
    kinds = {name: find_explorer(name) for name in EXPLORERS}
    return [
        name
        for name, kind in kinds.items()
        if kind.advantages is not Explorer.advantages or kind.rewards is not Explorer.rewards
    ]


@pytest.mark.parametrize("name", shaping())
def test_other_answers_and_likelihoods_change_the_advantages_unless_rewards_only(name, rollouts, stand_in_trainer):
    """Rewards stay; what else is known of the correct rollouts is permuted among them."""
    outcomes = []
    for order in ([0, 1, 2, 3], [2, 0, 1, 3]):

        def permuted(values: Any, order: list[int] = order) -> Any:
            return [values[i] for i in order]

        explorer = find_explorer(name)(**ARGUMENTS.get(name, {}))
        explorer.trainer = stand_in_trainer({"seed": 0}, max_completion_length=8)
        if name == "mode_replay":
            explorer._add = lambda found: None  # which needs a tokenizer
        batch = rollouts(
            "1110",
            answers=[permuted(["7", "7", "8", "9"])],
            logps=[permuted([-1.0, -2.0, -0.1, -5.0])],
            sequence_logps_pg=torch.tensor([permuted([-3.0, -9.0, -0.4, -8.0])]),
            base_logps_pg=torch.tensor([permuted([-4.0, -7.0, -0.9, -6.0])]),
            completion_ids_pg=(tuple(permuted([(1,), (1, 2), (1, 2, 3), (4,)])),),
        )
        trainer = ExploringTrainer.__new__(ExploringTrainer)
        trainer.explorers, trainer.scale_rewards = [explorer], "group"
        trainer._metrics = {"train": {"explorer/reward_shaped": []}}
        outcomes.append(trainer._advantages(batch, torch.tensor([[0.5, 0.5, 0.5, -1.5]])))
    assert torch.equal(*outcomes) == (name in REWARDS_ONLY | OBSERVERS)


@pytest.mark.parametrize("name", sorted(REWARDS_ONLY))
def test_an_explorer_that_declares_it_acts_through_advantages_alone(name):
    kind = find_explorer(name)
    assert [hook for hook in HOOKS if getattr(kind, hook) is not getattr(Explorer, hook)] == []


def test_the_prediction_is_about_all_of_them():
    assert set(REWARD_ONLY) >= REWARDS_ONLY
    assert not REWARDS_ONLY & set(ANSWER_AWARE)


def test_the_documentation_lists_them():
    text = (Path(__file__).parents[3] / "docs" / "variants.md").read_text()
    (row,) = re.findall(r"^\| rewards of the group alone \| (.*) \|", text, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == REWARDS_ONLY | {"plain", "nsr"}  # nsr is w_reinforce without lam
