"""The other variants that act on whole rollouts, against values worked by hand."""

from typing import Any

import pytest
import torch

from offleash.train.explorers.advantages.focal import Focal
from offleash.train.explorers.advantages.outcome_batch import OutcomeBatch
from offleash.train.explorers.advantages.outcome_ucb import OutcomeUcb
from offleash.train.explorers.advantages.placebo import Placebo
from offleash.train.explorers.advantages.ucpo import Ucpo
from offleash.train.explorers.advantages.unlikeliness import Unlikeliness, likeliness_ranks
from offleash.train.explorers.advantages.w_reinforce import WReinforce
from offleash.train.explorers.advantages.xdr_grpo import XdrGrpo, xdr_advantages


def test_focal_weighs_a_group_by_its_share_of_wrong_rollouts(rollouts) -> None:
    batch = rollouts("1110", "1000", "0000", "111x")
    shaped = Focal(gamma=0.5).advantages(batch, torch.ones(4, 4))
    assert shaped[:, 0].tolist() == pytest.approx([0.5, 0.75**0.5, 1.0, 0.0])


def test_an_answer_that_others_share_is_worth_less(rollouts) -> None:
    batch = rollouts("1000", answers=[["7", "7", "9", None]])
    shaped = OutcomeBatch(weight=0.4).advantages(batch, torch.zeros(1, 4))
    assert shaped.tolist()[0] == pytest.approx([-0.1, -0.1, 0.0, 0.0])


def test_the_ucb_bonus_falls_with_the_square_root_of_the_count_and_remembers(rollouts) -> None:
    explorer = OutcomeUcb(weight=1.0, baseline=0.5)
    batch = rollouts("1000", answers=[["7", "7", "7", "9"]])
    first = explorer.advantages(batch, torch.zeros(1, 4)).tolist()[0]
    assert first == pytest.approx([3**-0.5 - 0.5] * 3 + [0.5])
    second = explorer.advantages(batch, torch.zeros(1, 4)).tolist()[0]
    assert second == pytest.approx([6**-0.5 - 0.5] * 3 + [2**-0.5 - 0.5])


def test_w_reinforce_pays_right_a_little_and_charges_wrong_in_full(rollouts) -> None:
    shaped = WReinforce(lam=0.1).advantages(rollouts("10", "00"), torch.zeros(2, 2))
    assert shaped.tolist() == [pytest.approx([0.1, -1.0]), [-1.0, -1.0]]


def test_the_least_likely_rollout_keeps_its_whole_reward(rollouts) -> None:
    logps = [[-1.0, -3.0, -2.0, -0.5]]
    assert likeliness_ranks(torch.tensor(logps)).tolist() == [[2, 0, 1, 3]]
    shaped = Unlikeliness(beta_rank=0.25).rewards(rollouts("1101", logps=logps))
    assert shaped.tolist()[0] == pytest.approx([1 - 0.125, 1.0, 0.0, 1 - 0.1875])


def test_ucpo_moves_credit_to_the_unlikely_and_keeps_the_sum(rollouts) -> None:
    logps = [[-1.0, -3.0, -2.0, -0.5]]
    batch = rollouts("1100", logps=logps)
    shaped = Ucpo(tau=0.2).advantages(batch, torch.tensor([[1.0, 1.0, -1.0, -1.0]]))
    q = torch.softmax(torch.tensor([-1.0, -3.0]), 0)
    w = 0.8 / 2 + 0.2 * (1 / q) / (1 / q).sum()
    assert torch.allclose(shaped[0, :2], 2 * w)
    assert shaped[0, :2].sum() == pytest.approx(2.0)
    assert shaped[0, 2:].tolist() == [-1.0, -1.0]
    solved = rollouts("1111", logps=logps)
    assert Ucpo(tau=0.2).advantages(solved, torch.full((1, 4), 0.1)).tolist() == [pytest.approx([0.1] * 4)]


def test_xdr_grpo_weighs_a_group_by_the_softmax_of_advantage_times_length(rollouts, stand_in_trainer) -> None:
    explorer = XdrGrpo(tau=0.1)
    explorer.trainer = stand_in_trainer(max_completion_length=4)
    batch = rollouts("110x", completion_ids_pg=(((5,), (5, 6), (5, 6, 7, 8), (5,)),))
    shaped = explorer.advantages(batch, torch.zeros(1, 4))[0]
    a = torch.tensor([1 / 3, 1 / 3, -2 / 3])
    w = torch.softmax(a * torch.tensor([1.0, 2.0, 4.0]) / 4 / 0.1, 0)
    assert torch.allclose(shaped, torch.cat([3 * w * a, torch.zeros(1)]))


def test_xdr_grpo_maximizes_utility_plus_entropy_and_is_dr_grpo_at_a_high_temperature() -> None:
    rewards, lengths = torch.tensor([[1.0, 0.0, 1.0, 0.0]]), torch.tensor([[3, 1, 2, 4]])
    centered, tau = rewards - 0.5, 0.3
    utility = (centered * lengths / 4)[0]
    w = (xdr_advantages(rewards, lengths, 4, tau) / centered / 4)[0]

    def objective(weights: torch.Tensor) -> float:
        return float((weights * utility).sum() - tau * (weights * weights.log()).sum())

    others = torch.distributions.Dirichlet(torch.ones(4)).sample((500,))
    assert all(objective(other) < objective(w) for other in others)
    assert torch.allclose(xdr_advantages(rewards, lengths, 4, 1e6), centered, atol=1e-5)
    assert torch.allclose(xdr_advantages(rewards, torch.tensor([[3, 1, 0, 4]]), 4, 1e6)[0, 2], torch.tensor(0.0))


def test_the_placebo_is_the_same_for_equal_answers_and_centred(rollouts, placebo) -> None:
    batch = rollouts("1000", answers=[["7", "7", "9", "8"]])
    shaped = placebo().advantages(batch, torch.zeros(1, 4))
    assert shaped[0, 0] == shaped[0, 1] != shaped[0, 2]
    assert shaped.sum() == pytest.approx(0.0, abs=1e-6)
    assert torch.equal(placebo().advantages(batch, torch.zeros(1, 4)), shaped)


@pytest.mark.parametrize("other", [{"seed": 1}, {"training_seed": 1}])
def test_another_seed_of_the_placebo_or_the_training_draws_another(rollouts, other, placebo) -> None:
    batch = rollouts("1000", answers=[["7", "7", "9", "8"]])
    ours, theirs = (made.advantages(batch, torch.zeros(1, 4)) for made in (placebo(), placebo(**other)))
    assert not torch.allclose(ours, theirs)


@pytest.fixture
def placebo(stand_in_trainer: Any) -> Any:
    def make(seed: int = 0, training_seed: int = 0) -> Placebo:
        made = Placebo(weight=0.5, seed=seed)
        made.attach(stand_in_trainer({"seed": training_seed}))
        return made

    return make
