"""Entropy-shaped advantage: tokens at which the policy is uncertain get more weight.

Cheng et al., arXiv 2506.14758, eq. 3: A_t <- A_t + min(alpha H_t, |A_t| / kappa), H_t without gradient. It
raises a positive advantage by at most 1 / kappa of its size and weakens a negative one; an advantage of 0 stays 0.
"""

import torch

from offleash.train.explorers.base import Explorer, Tokens
from offleash.train.explorers.checks import check_positive


class EntropyAdvantage(Explorer):
    """Args: alpha, the weight of the entropy; kappa, its bound relative to the advantage."""

    rows_apart = True

    def __init__(self, alpha: float = 0.4, kappa: float = 2.0) -> None:
        check_positive("entropy_advantage", alpha=alpha, kappa=kappa)
        self.alpha, self.kappa = alpha, kappa

    def token_advantages(self, tokens: Tokens) -> torch.Tensor:
        bound_bt = tokens.advantages_bt.abs() / self.kappa
        return tokens.advantages_bt + torch.minimum(self.alpha * tokens.entropies_bt.detach(), bound_bt)
