"""UCPO: the credit of a group's correct rollouts is redistributed towards the unlikely ones (arXiv 2605.00365).

Among n correct rollouts, q = softmax of their mean token log-probabilities, and the advantage is multiplied by
n w_i with w_i = (1 - tau) / n + tau (1 / q_i) / sum_j (1 / q_j): the group's total credit is unchanged. An
all-correct group has none to redistribute.
"""

import torch

from offleash.train.explorers.base import Explorer, Rollouts, all_correct
from offleash.train.explorers.checks import check_fraction


def rarity_weights(logps_pg: torch.Tensor, right_pg: torch.Tensor, tau: float) -> torch.Tensor:
    """(P, G) n w for correct rollouts, 1 for the others and where the log-probability is not known (NaN)."""
    right_pg = right_pg & ~logps_pg.isnan()
    inverse_pg = torch.softmax((-logps_pg).masked_fill(~right_pg, -torch.inf), 1).nan_to_num()
    weights_pg = (1 - tau) + tau * right_pg.sum(1, keepdim=True) * inverse_pg
    return torch.where(right_pg, weights_pg, 1.0)


class Ucpo(Explorer):
    """Args: tau, the fraction of the credit that is distributed by rarity."""

    needs_logps = True

    def __init__(self, tau: float = 0.2) -> None:
        check_fraction("ucpo", tau=tau)
        self.tau = tau

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        assert rollouts.logps_pg is not None
        weights_pg = rarity_weights(rollouts.logps_pg, rollouts.rewards_pg == 1, self.tau)
        return advantages_pg * torch.where(all_correct(rollouts.rewards_pg), 1.0, weights_pg)
