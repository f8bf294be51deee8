"""How much a token's update lowers the policy's entropy: its share of the covariance of log-probability and advantage.

Cui et al., arXiv 2505.22617, eq. 9: cov_t = (A_t - mean A) (lp_t - mean lp), means over the tokens of the batch.
"""

import torch

from offleash.train.explorers.base import Tokens


def token_covariance(tokens: Tokens) -> torch.Tensor:
    """(B, T), means over the micro-batch of all ranks; NaN outside the mask."""
    inside = tokens.mask_bt.bool()
    logps_bt, advantages_bt = tokens.logps_bt.detach(), tokens.advantages_bt
    mean_logp = tokens.gather(logps_bt[inside]).mean()
    mean_advantage = tokens.gather(advantages_bt[inside]).mean()
    return torch.where(inside, (advantages_bt - mean_advantage) * (logps_bt - mean_logp), torch.nan)
