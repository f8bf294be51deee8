"""Several explorers in one run, and hooks that return what they must not."""

from typing import Any

import pytest
import torch

from offleash.eval.errors import ConfigError
from offleash.train.explorers import load_explorers
from offleash.train.explorers.base import Explorer
from offleash.train.explorers.chain import require_chain
from offleash.train.trainer import ExploringTrainer, normalised


class Bonus(Explorer):
    """Pays each group's first rollout, with a new tensor or in place."""

    def __init__(self, size: float = 0.1, in_place: bool = False) -> None:
        self.size, self.in_place = size, in_place

    def rewards(self, rollouts: Any) -> torch.Tensor:
        rewards_pg = rollouts.rewards_pg if self.in_place else rollouts.rewards_pg.clone()
        rewards_pg[:, 0] += self.size
        return rewards_pg


class Gift(Explorer):
    """Returns what it was built with, from the hook that it was built with."""

    def __init__(self, hook: str, value: Any) -> None:
        self.hook, self.value = hook, value

    def rewards(self, rollouts: Any) -> Any:
        return self.value if self.hook == "rewards" else rollouts.rewards_pg

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> Any:
        return self.value if self.hook == "advantages" else advantages_pg

    def token_advantages(self, tokens: Any) -> Any:
        return self.value if self.hook == "token_advantages" else tokens.advantages_bt

    def extra_loss(self, tokens: Any, model: Any) -> Any:
        return self.value if self.hook == "extra_loss" else None

    def traces(self, problem_ids: Any) -> Any:
        return self.value if self.hook == "traces" else [None] * len(problem_ids)


@pytest.fixture
def advantages(rollouts):
    """What a chain of explorers makes of groups such as "1100", and what the trainer logs of it."""

    def of(explorers: list[Explorer], *groups: str, logps: Any = None) -> tuple[torch.Tensor, dict[str, list[float]]]:
        batch = rollouts(*groups, logps=logps)
        before_pg = batch.rewards_pg.clone()
        trainer = ExploringTrainer.__new__(ExploringTrainer)
        trainer.explorers, trainer.scale_rewards = explorers, "group"
        trainer._metrics = {"train": {"explorer/reward_shaped": []}}
        stock_pg = normalised(batch.rewards_pg, "group")
        kept_pg = stock_pg.clone()
        shaped_pg = trainer._advantages(batch, stock_pg)
        assert torch.equal(batch.rewards_pg.nan_to_num(-1), before_pg.nan_to_num(-1))
        assert torch.equal(stock_pg, kept_pg)
        return shaped_pg, trainer._metrics["train"]

    return of


class Once(Gift):
    """Brings traces, and draws the batch itself."""

    def collect(self, inputs: Any, explored: Any) -> Any:
        return explored(inputs)[0]


@pytest.mark.parametrize(("pair", "hook"), [((Once, Once), "collect"), ((Gift, Once), "traces")])
def test_two_that_draw_the_batch_or_bring_traces_are_refused(pair, hook) -> None:
    with pytest.raises(ConfigError, match=f"cannot be joined, {hook} of one alone is used"):
        require_chain([kind("rewards", None) for kind in pair])


LOGPS = [[-1.0, -2.0, -0.1, -5.0], [-0.3, -0.2, -0.4, -0.1]]


@pytest.mark.parametrize("names", [("focal", "unlikeliness"), ("unlikeliness", "focal")])
def test_advantages_are_shaped_after_rewards_whatever_the_order(names, advantages) -> None:
    alone, _ = advantages(load_explorers({"unlikeliness": {}}), "1100", "1110", logps=LOGPS)
    both, _ = advantages(load_explorers({name: {} for name in names}), "1100", "1110", logps=LOGPS)
    assert torch.allclose(both, alone * torch.tensor([[0.5**0.5], [0.25**0.5]]))


def test_changes_of_the_reward_add_up_and_are_normalised_once(advantages) -> None:
    shaped, logged = advantages([Bonus(0.5), Bonus(0.25)], "1100", "0000")
    assert torch.allclose(shaped, normalised(torch.tensor([[1.75, 1, 0, 0], [0.75, 0, 0, 0]]), "group"))
    assert logged["explorer/reward_shaped"] == [pytest.approx(3.5 / 8)]


def test_a_hook_that_works_in_place_counts_and_leaves_the_true_rewards_alone(advantages) -> None:
    in_place, _ = advantages([Bonus(in_place=True)], "1100", "x010", "1111")
    anew, _ = advantages([Bonus()], "1100", "x010", "1111")
    assert torch.equal(in_place, anew)
    assert not torch.equal(in_place, advantages([Explorer()], "1100", "x010", "1111")[0])


class AddInPlace(Explorer):
    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        rollouts.rewards_pg.zero_()
        return advantages_pg.add_(1.0)


def test_advantages_changed_in_place_leave_what_they_are_compared_with_alone(advantages) -> None:
    shaped, _ = advantages([AddInPlace()], "1100", "1111")
    assert torch.allclose(shaped, normalised(torch.tensor([[1.0, 1, 0, 0], [1, 1, 1, 1]]), "group") + 1)


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (
            ["focal", "pass_at_k"],
            "PassAtK computes advantages afresh and would drop those of Focal: name PassAtK first",
        ),
        (["ucpo", "focal", "w_reinforce"], "would drop those of Ucpo and Focal: name WReinforce first"),
        (["pkpo", "pass_at_k"], "would drop those of Pkpo: choose one of them"),
        (["pass_at_k", "unlikeliness"], "PassAtK computes .* and would ignore those of Unlikeliness"),
        (["unlikeliness", "pkpo"], "Pkpo computes .* and would ignore those of Unlikeliness"),
    ],
)
def test_a_chain_in_which_one_would_drop_anothers_work_is_refused(names, error: str, make_trainer) -> None:
    with pytest.raises(ConfigError, match=error):
        load_explorers({name: {} for name in names})
    with pytest.raises(ConfigError, match=error):
        make_trainer("run", [explorer for name in names for explorer in load_explorers({name: {}})])


@pytest.mark.parametrize(
    "names", [["pass_at_k", "focal"], ["kl_cov", "pkpo", "ucpo"], ["entropy_advantage", "w_reinforce"]]
)
def test_an_explorer_that_computes_advantages_afresh_may_come_first_of_those_with_advantages(names) -> None:
    assert len(load_explorers({name: {} for name in names})) == len(names)


class Apart(Explorer):
    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        return advantages_pg + torch.tensor([0.3, 0.1, 0.1, 0.1])


def test_advantages_that_tell_an_all_right_group_apart_are_refused(advantages) -> None:
    advantages([Apart()], "1100", "0000")
    advantages([Apart()], "x111", "0000")
    for group in ("1111", "1x11"):
        with pytest.raises(ConfigError, match="explorer Apart: advantages must be the same"):
            advantages([Apart()], "1100", group)


@pytest.mark.parametrize("hook", ["rewards", "advantages"])
@pytest.mark.parametrize(
    ("value", "got"), [(torch.zeros(2, 1), r"\(2, 1\)"), (torch.zeros(8), r"\(8,\)"), (None, "None")]
)
def test_a_wrong_shape_of_a_batch_is_refused_by_the_hooks_name(hook: str, value: Any, got: str, advantages) -> None:
    with pytest.raises(
        ConfigError, match=rf"explorer Gift: {hook} must return a tensor of shape \(2, 4\), got .*{got}"
    ):
        advantages([Gift(hook, value)], "1100", "1000")


@pytest.mark.parametrize(
    ("hook", "value", "error"),
    [
        ("token_advantages", torch.zeros(32, 1), r"shape \(32, \d+\), got one of shape \(32, 1\)"),
        ("extra_loss", torch.zeros(1), r"shape \(\), got one of shape \(1,\)"),
        ("traces", [None], "for each of 8 problems, got 1"),
    ],
)
def test_a_wrong_shape_in_the_loss_is_refused_by_the_hooks_name(
    hook: str, value: Any, error: str, make_trainer
) -> None:
    with pytest.raises(ConfigError, match=rf"explorer Gift: {hook} must return .*{error}"):
        make_trainer("run", [Gift(hook, value)], max_steps=1).train()


class Louder(Explorer):
    """Adds to every token's advantage."""

    def token_advantages(self, tokens: Any) -> torch.Tensor:
        return tokens.advantages_bt + 0.25


def test_what_is_done_to_token_advantages_is_logged_under_a_key_of_its_own(make_trainer, trajectory) -> None:
    trainer = make_trainer("run", [Louder()], max_steps=1)
    trainer.train()
    (row,) = trajectory(trainer)
    assert row["explorer/token_advantage_change_abs"] == pytest.approx(0.25)
    assert row["explorer/advantage_change_abs"] == 0
