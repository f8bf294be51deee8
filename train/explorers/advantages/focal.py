"""F-GRPO: problems that the policy already solves get less weight (arXiv 2602.06717).

Every advantage of a group is multiplied by (1 - mu)^gamma, where mu is the fraction of correct rollouts.
"""

import torch

from offleash.train.explorers.base import Explorer, Rollouts
from offleash.train.explorers.checks import check_positive


class Focal(Explorer):
    """Args: gamma, 0.5 in most of the paper's settings."""

    rewards_only = True

    def __init__(self, gamma: float = 0.5) -> None:
        check_positive("focal", gamma=gamma)
        self.gamma = gamma

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        right_p1 = rollouts.rewards_pg.nanmean(1, keepdim=True).nan_to_num()
        return advantages_pg * (1 - right_p1) ** self.gamma
