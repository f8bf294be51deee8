"""KL-Cov: the tokens that would lower the entropy most are held to the policy that drew them.

Cui et al., arXiv 2505.22617, eq. 12: the `ratio` of tokens with the highest covariance pay `weight` * |lp - lp_old|.
Its gradient is 0 while the policy still is the one that drew them, so it needs more than one update per rollout.
"""

from typing import Any

import torch

from offleash.eval.errors import ConfigError
from offleash.train.explorers.base import Explorer, Tokens
from offleash.train.explorers.covariance import token_covariance
from offleash.train.explorers.inert import updates_per_rollout

__all__ = ["KlCov"]


class KlCov(Explorer):
    """Args: ratio of tokens that pay (2e-3 for 7B models, 2e-4 for 32B); weight of what they pay."""

    def __init__(self, ratio: float = 2e-3, weight: float = 1.0) -> None:
        self.ratio, self.weight = ratio, weight

    def attach(self, trainer: Any) -> None:
        super().attach(trainer)
        if updates_per_rollout(trainer.args) < 2:
            raise ConfigError(
                "explorer kl_cov does nothing with one update per rollout: set steps_per_generation (or "
                "num_iterations) above gradient_accumulation_steps"
            )

    def extra_loss(self, tokens: Tokens, model: Any) -> torch.Tensor | None:
        cov_bt = token_covariance(tokens)
        all_cov = tokens.gather(cov_bt[tokens.mask_bt.bool()])
        payers = int(self.ratio * len(all_cov))
        if payers == 0:
            return None
        threshold = all_cov.topk(payers).values[-1]
        distance_bt = (tokens.logps_bt - tokens.old_logps_bt).abs()
        return self.weight * tokens.token_mean(torch.where(cov_bt >= threshold, distance_bt, 0.0))
