"""Pass@k training, PKPO and MaxRL against the papers' values and brute force over all sets of rollouts."""

from itertools import combinations, product

import pytest
import torch

from offleash.eval.errors import ConfigError
from offleash.train.explorers.advantages.maxrl import MaxRl, maxrl_advantages
from offleash.train.explorers.advantages.pass_at_k import PassAtK, pass_at_k_advantages
from offleash.train.explorers.advantages.pkpo import Pkpo, pkpo_advantage


@pytest.mark.parametrize(
    ("right", "up", "down"), [(1, 1.0, -0.143), (2, 0.522, -0.174), (4, 0.12, -0.12), (5, 0, 0), (8, 0, 0), (0, 0, 0)]
)
def test_pass_at_k_has_the_papers_values_for_eight_rollouts_and_k_of_four(right: int, up: float, down: float) -> None:
    assert pass_at_k_advantages(right, 8, 4) == pytest.approx((up, down), abs=5e-4)


@pytest.mark.parametrize("total", [4, 6, 8])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_at_k_is_the_mean_over_all_groups_of_k(total: int, k: int) -> None:
    for right in range(1, total):
        best = {s: float(min(s) < right) for s in combinations(range(total), k)}  # rollouts 0..right-1 are right
        mean = sum(best.values()) / len(best)
        spread = (sum((b - mean) ** 2 for b in best.values()) / len(best)) ** 0.5
        if spread == 0:
            assert pass_at_k_advantages(right, total, k) == (0, 0)
            continue
        of = [[(b - mean) / spread for s, b in best.items() if i in s] for i in (0, total - 1)]
        assert pass_at_k_advantages(right, total, k) == pytest.approx([sum(rows) / len(rows) for rows in of])


@pytest.mark.parametrize("k", [1, 2, 4])
def test_pkpo_is_what_a_rollout_adds_to_the_best_of_k(k: int) -> None:
    total = 6
    for right in range(total + 1):
        sets = list(combinations(range(total), k))

        def best(s: tuple[int, ...], right: int = right) -> float:
            return float(any(i < right for i in s))

        added = [sum(best(s) - best(tuple(j for j in s if j != i)) for s in sets if i in s) for i in (0, total - 1)]
        if 0 < right < total:
            assert pkpo_advantage(right, total, k) == pytest.approx(added[0] / len(sets))
            assert added[1] == 0


def test_pkpo_follows_the_gradient_of_pass_at_k() -> None:
    """Two outcomes, right with probability p: the expected step is the derivative of 1 - (1 - p)^k in log-odds."""
    total, k, p = 5, 3, 0.3
    step = 0.0
    for right in range(total + 1):
        chance = torch.distributions.Binomial(total, torch.tensor(p, dtype=torch.float64)).log_prob(torch.tensor(right))
        step += float(chance.exp()) * right * pkpo_advantage(right, total, k) * (1 - p)  # d log p / d logit = 1 - p
    assert step == pytest.approx(k * (1 - p) ** (k - 1) * p * (1 - p), rel=1e-6)


def test_maxrl_divides_by_the_fraction_of_correct_rollouts(rollouts) -> None:
    shaped = MaxRl().advantages(rollouts("1000", "1110", "0000", "1111", "10xx"), torch.ones(5, 4)).tolist()
    third = 1 / 3
    assert shaped == [
        pytest.approx([3, -1, -1, -1]),
        pytest.approx([third, third, third, -1]),
        [0] * 4,
        [0] * 4,
        [1, -1, 0, 0],
    ]


def test_maxrl_follows_the_gradients_of_pass_at_k_over_k_up_to_the_group_less_one() -> None:
    """Two outcomes, right with probability p: the expected step, in log-odds, by brute force over all groups."""
    total, p = 5, 0.3
    step = 0.0
    for rewards in product((0.0, 1.0), repeat=total):
        right = sum(rewards)
        chance = p**right * (1 - p) ** (total - right)
        (advantages,) = maxrl_advantages(torch.tensor([rewards], dtype=torch.float64)).tolist()
        step += chance * sum(a * (r - p) for a, r in zip(advantages, rewards, strict=True)) / total
    slope = p * (1 - p)  # dp / d log-odds
    assert step == pytest.approx(sum((1 / k) * k * (1 - p) ** (k - 1) * slope for k in range(1, total)))


def test_with_k_of_one_pass_at_k_is_grpo_up_to_bessels_correction(rollouts) -> None:
    batch = rollouts("1000", "1110", "1111", "0000")
    ours = PassAtK(k=1).advantages(batch, torch.zeros(4, 4))
    centred = batch.rewards_pg - batch.rewards_pg.mean(1, keepdim=True)
    spread = batch.rewards_pg.std(1, correction=0, keepdim=True)
    assert torch.allclose(ours, (centred / spread).nan_to_num(), atol=1e-6)


@pytest.mark.parametrize("explorer", [PassAtK(k=2), Pkpo(k=2)])
def test_a_rollout_that_could_not_be_verified_is_left_out_of_the_group(explorer, rollouts) -> None:
    with_failure = explorer.advantages(rollouts("110x"), torch.zeros(1, 4))
    without = explorer.advantages(rollouts("110"), torch.zeros(1, 3))
    assert torch.allclose(with_failure[:, :3], without)


@pytest.mark.parametrize(("explorer", "name", "most"), [(PassAtK, "pass_at_k", 3), (Pkpo, "pkpo", 4)])
def test_a_k_with_which_every_advantage_is_0_is_refused(explorer, name, most, make_trainer, rollouts) -> None:
    groups = ("0000", "1000", "1100", "1110", "1111")
    assert explorer(k=most).advantages(rollouts(*groups), torch.zeros(5, 4)).any()
    assert not explorer(k=most + 1).advantages(rollouts(*groups), torch.zeros(5, 4)).any()
    make_trainer("run", [explorer(k=most)])
    with pytest.raises(ConfigError, match=f"explorer {name} .*k is {most + 1}.*num_generations"):
        make_trainer("run", [explorer(k=most + 1)])
