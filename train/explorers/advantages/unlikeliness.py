"""Unlikeliness reward: among correct rollouts the likely ones get a lower reward (He et al., arXiv 2506.02355).

r <- r (1 - beta_rank * rank / G), rank 0 for the rollout with the lowest mean token log-probability of the group; the
advantage follows from these rewards as usual. All-correct groups keep advantage 0: otherwise rank differences alone
would become a signal of unit variance.
"""

import torch

from offleash.train.explorers.base import Explorer, Rollouts
from offleash.train.explorers.checks import check_fraction


def likeliness_ranks(logps_pg: torch.Tensor) -> torch.Tensor:
    """(P, G) rank in the group, 0 for the least likely rollout; ties keep their order.

    A rollout whose likelihood is not known (NaN) has rank 0, so that it is not taken for the likeliest.
    """
    ranks_pg = logps_pg.argsort(dim=1, stable=True).argsort(dim=1, stable=True)  # NaN comes last
    return ranks_pg.masked_fill(logps_pg.isnan(), 0)


class Unlikeliness(Explorer):
    """Args: beta_rank, the reduction of the likeliest rollout's reward."""

    needs_logps = True

    def __init__(self, beta_rank: float = 0.25) -> None:
        check_fraction("unlikeliness", beta_rank=beta_rank)
        self.beta_rank = beta_rank

    def rewards(self, rollouts: Rollouts) -> torch.Tensor:
        assert rollouts.logps_pg is not None
        ranks_pg = likeliness_ranks(rollouts.logps_pg)
        return rollouts.rewards_pg * (1 - self.beta_rank * ranks_pg / ranks_pg.shape[1])
