"""KL-Cov: the tokens that would lower the entropy most are held to the policy that drew them.

Cui et al., arXiv 2505.22617, eq. 12: the `ratio` of tokens with the highest covariance, at least one, pay
`weight` * |lp - lp_old|. The reference has no ratio clip; here TRL's stays, at the recipe's `epsilon`.
Its gradient is 0 while the policy still is the one that drew them, so it needs more than one update per rollout.
"""

from typing import Any

import torch
from trl import GRPOConfig

from offleash.eval.errors import ConfigError
from offleash.train.explorers.base import Explorer, Tokens
from offleash.train.explorers.covariance import token_covariance
from offleash.train.explorers.inert import updates_per_rollout
from offleash.train.explorers.ranges import require_positive, require_share


class KlCov(Explorer):
    """Args: ratio of tokens that pay (2e-3 for 7B models, 2e-4 for 32B); weight of what they pay."""

    def __init__(self, ratio: float = 2e-3, weight: float = 1.0) -> None:
        require_share("kl_cov", ratio=ratio)
        require_positive("kl_cov", weight=weight)
        self.ratio, self.weight = ratio, weight

    def require(self, training: GRPOConfig) -> None:
        if updates_per_rollout(training) < 2:
            raise ConfigError(
                "explorer kl_cov does nothing with one update per rollout: set steps_per_generation (or "
                "num_iterations) above gradient_accumulation_steps"
            )

    def extra_loss(self, tokens: Tokens, model: Any) -> torch.Tensor | None:
        distance_bt = (tokens.logps_bt - tokens.old_logps_bt).abs()
        return self.weight * tokens.token_mean(torch.where(self._payers(tokens), distance_bt, 0.0))

    def _payers(self, tokens: Tokens) -> torch.Tensor:
        """(B, T) this rank's part of the top of all ranks, which has the same size however many covariances tie."""
        inside_bt = tokens.mask_bt.bool()
        own = token_covariance(tokens)[inside_bt]
        every = tokens.gather(own)
        wanted = min(max(int(self.ratio * len(every)), 1), len(every))
        pays = torch.zeros_like(every, dtype=torch.bool)
        pays[every.topk(wanted).indices] = True
        counts = tokens.gather(torch.tensor([float(len(own))], device=own.device))
        first = int(counts[: self.trainer.accelerator.process_index].sum())
        payers_bt = torch.zeros_like(inside_bt)
        payers_bt[inside_bt] = pays[first : first + len(own)]
        return payers_bt
