"""xDr.GRPO: the rollouts of a group are weighted by a softmax of what they contribute, not equally.

"Exploration Should Act at the Group Level in RL LLM Fine-Tuning" (paper and code in liv-daliberti/maxent-grpo). The
utility of rollout i is its term of Dr.GRPO's objective, U_i = A_i T_i / T_max, with A_i = r_i less the group's mean,
T_i its length and T_max the longest allowed. Of all distributions w over the group, the one that maximizes
sum w_i U_i + tau H(w) is

    w_i = exp(U_i / tau) / sum_j exp(U_j / tau),    A_i <- G w_i A_i

which replaces the weights 1 / G. A small tau trains on the correct rollouts, the longer ones first, and hardly on the
wrong ones; a large one is Dr.GRPO. All-correct groups keep A = 0. The paper's loss is `dr_grpo`; `dapo` differs from it
by a factor that all tokens of a batch share. A loss that divides by lengths has other terms and is refused. Groups
without standard deviation, as in Dr.GRPO, whatever `scale_rewards` says.
"""

import torch
from trl import GRPOConfig

from offleash.train.explorers.base import Explorer, Rollouts
from offleash.train.explorers.checks import check_not_by_length, check_positive


def xdr_advantages(rewards_pg: torch.Tensor, lengths_pg: torch.Tensor, longest: int, tau: float) -> torch.Tensor:
    """(P, G); 0 for rollouts that the verifier failed on or that have no tokens, which are no part of the softmax."""
    known_pg = ~rewards_pg.isnan() & (lengths_pg > 0)
    centered_pg = rewards_pg - rewards_pg.nanmean(1, keepdim=True)
    utility_pg = centered_pg * lengths_pg / longest
    weights_pg = torch.softmax((utility_pg / tau).masked_fill(~known_pg, -torch.inf), 1)
    return torch.where(known_pg, known_pg.sum(1, keepdim=True) * weights_pg * centered_pg, 0.0)


class XdrGrpo(Explorer):
    """Args: tau, the temperature of the weights; 0.05 is the paper's primary setting."""

    needs_completions = True
    replaces_advantages = True

    def __init__(self, tau: float = 0.05) -> None:
        check_positive("xdr_grpo", tau=tau)
        self.tau = tau

    def check(self, training: GRPOConfig) -> None:
        check_not_by_length("xdr_grpo", training)

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        assert rollouts.completion_ids_pg is not None
        lengths_pg = torch.tensor([[len(ids) for ids in group] for group in rollouts.completion_ids_pg])
        return xdr_advantages(rollouts.rewards_pg, lengths_pg, self.trainer.max_completion_length, self.tau)
