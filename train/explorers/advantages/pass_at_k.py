"""Pass@k training: the advantage of "at least one of k rollouts is correct" (Chen et al., arXiv 2508.10751, section 3).

With c of G rollouts correct, R = 1 - C(G-c, k) / C(G, k) is the mean reward of a group of k, s = sqrt(R (1 - R)) its
standard deviation, and averaging over all such groups that contain a rollout gives

    correct: (1 - R) / s        wrong: (1 - R - C(G-c-1, k-1) / C(G-1, k-1)) / s

Once c > G - k every group of k has a correct one: the advantage is 0, and solved problems are no longer trained on.
"""

from math import comb, sqrt

import torch
from trl import GRPOConfig

from offleash.train.explorers.base import Explorer, Rollouts
from offleash.train.explorers.checks import check_at_least_1, check_group_size


def pass_at_k_advantages(right: int, total: int, k: int) -> tuple[float, float]:
    """The advantages of a correct and of a wrong rollout; (0, 0) where all groups of k agree."""
    mean = 1 - comb(total - right, k) / comb(total, k)
    spread = sqrt(mean * (1 - mean))
    if spread == 0:
        return 0.0, 0.0
    lone = comb(total - right - 1, k - 1) / comb(total - 1, k - 1)
    return (1 - mean) / spread, (1 - mean - lone) / spread


class SetObjective(Explorer):
    """An objective over sets of k rollouts: advantages follow from the number of correct rollouts in a group."""

    replaces_advantages = True
    rewards_only = True
    k: int

    def of_group(self, right: int, total: int) -> tuple[float, float]:
        """The advantages of a correct and of a wrong rollout."""
        raise NotImplementedError

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        return torch.stack([self._group(rewards_g) for rewards_g in rollouts.rewards_pg])

    def _group(self, rewards_g: torch.Tensor) -> torch.Tensor:
        right, total = int((rewards_g == 1).sum()), int((~rewards_g.isnan()).sum())
        if total < self.k or right == total:
            return torch.zeros_like(rewards_g)
        return torch.where(rewards_g == 1, *self.of_group(right, total))


class PassAtK(SetObjective):
    """Args: k, below num_generations: with a single group of k the advantage is 0."""

    def __init__(self, k: int = 4) -> None:
        check_at_least_1("pass_at_k", k=k)
        self.k = k

    def check(self, training: GRPOConfig) -> None:
        check_group_size("pass_at_k", self.k, training, largest=training.num_generations - 1)

    def of_group(self, right: int, total: int) -> tuple[float, float]:
        return pass_at_k_advantages(right, total, self.k)
