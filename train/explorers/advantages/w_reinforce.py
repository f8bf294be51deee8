"""W-REINFORCE: learn mostly from wrong rollouts, without a group baseline (Zhu et al., arXiv 2506.01347).

A correct rollout has advantage lam, a wrong one -1. lam = 0 is NSR (negative samples only). It is the only variant that
learns from all-wrong groups.
"""

import torch

from offleash.eval.errors import ConfigError
from offleash.train.explorers.base import Explorer, Rollouts
from offleash.train.explorers.checks import check_not_negative


class WReinforce(Explorer):
    """Args: lam, the weight of correct rollouts; negative, that of wrong ones (0 with lam = 1 is PSR)."""

    replaces_advantages = True
    rewards_only = True

    def __init__(self, lam: float = 0.1, negative: float = 1.0) -> None:
        check_not_negative("w_reinforce", lam=lam, negative=negative)
        if lam == negative == 0:
            raise ConfigError("lam and negative of explorer w_reinforce must not both be 0: nothing would be trained")
        self.lam, self.negative = lam, negative

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        return torch.where(rollouts.rewards_pg == 1, self.lam, -self.negative)
