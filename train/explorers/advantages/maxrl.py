"""MaxRL: rollouts of problems that are rarely solved weigh more, as under maximum likelihood (arXiv 2602.02710).

With mu the fraction of correct rollouts in the group, A = (r - mu) / mu, and 0 where none is correct. GRPO divides by
the standard deviation sqrt(mu (1 - mu)) instead, REINFORCE by nothing.

The expected step is that of log p, cut off: log p = -sum_k (1 - p)^k / k, whose gradient is the sum over k of the
gradient of pass@k / k. A group of G has the terms up to k = G - 1 (without the -1 of r / mu - 1, which is its baseline,
it would have G).
"""

import torch

from offleash.train.explorers.base import Explorer, Rollouts


def maxrl_advantages(rewards_pg: torch.Tensor) -> torch.Tensor:
    """(P, G), 0 in groups without a correct rollout and where the verifier failed."""
    mean_p1 = rewards_pg.nanmean(1, keepdim=True)
    return torch.where(mean_p1 > 0, (rewards_pg - mean_p1) / mean_p1, 0.0).nan_to_num()


class MaxRl(Explorer):
    """It has no settings."""

    replaces_advantages = True
    rewards_only = True

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        return maxrl_advantages(rollouts.rewards_pg)
