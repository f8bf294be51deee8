"""Clip-Cov and KL-Cov: restrain the tokens whose update would lower the policy's entropy most.

Cui et al., arXiv 2505.22617. A token's contribution is its share of the covariance of log-probability and advantage,
eq. 9: cov_t = (A_t - mean A) (lp_t - mean lp), means over the tokens of the batch.

Clip-Cov, eq. 10-11: of the tokens with low < cov < high that are not affected by the ratio clip anyway, int(ratio *
tokens), at least one, are drawn at random and their policy loss is 0 (the KL term stays). The paper's scripts open the
ratio clip to 1; here it is the recipe's `epsilon`.

KL-Cov, eq. 12: the `ratio` of tokens with the highest covariance, at least one, are penalized by `weight` *
|lp - lp_old|. The paper's implementation has no ratio clip; here TRL's stays, at the recipe's `epsilon`. The gradient
is 0 at the first update of a rollout, so KL-Cov needs more than one.
"""

from hashlib import sha256
from typing import Any

import torch
from trl import GRPOConfig

from offleash.callbacks.policy.trl_seam import micro_batch
from offleash.eval.errors import ConfigError
from offleash.train.explorers.base import Explorer, Tokens
from offleash.train.explorers.checks import check_fraction, check_positive, updates_per_rollout


def token_covariance(tokens: Tokens) -> torch.Tensor:
    """(B, T), means over the micro-batch of all ranks; NaN outside the mask."""
    inside = tokens.mask_bt.bool()
    logps_bt, advantages_bt = tokens.logps_bt.detach(), tokens.advantages_bt
    mean_logp = tokens.gather(logps_bt[inside]).mean()
    mean_advantage = tokens.gather(advantages_bt[inside]).mean()
    return torch.where(inside, (advantages_bt - mean_advantage) * (logps_bt - mean_logp), torch.nan)


class ClipCov(Explorer):
    """Args: ratio of tokens to leave out; low and high, the range of covariance they are drawn from."""

    def __init__(self, ratio: float = 2e-4, low: float = 1.0, high: float = 5.0) -> None:
        check_fraction("clip_cov", ratio=ratio)
        if not low < high:
            raise ConfigError(f"low of explorer clip_cov must be below high, got {low} and {high}")
        self.ratio, self.low, self.high = ratio, low, high
        self.step, self.left_out = -1, 0

    def token_advantages(self, tokens: Tokens) -> torch.Tensor:
        cov_bt = token_covariance(tokens)
        candidates_bt = (cov_bt > self.low) & (cov_bt < self.high) & ~self._is_clipped(tokens)
        out_bt = self._drawn(tokens, candidates_bt)
        return torch.where(out_bt, 0.0, tokens.advantages_bt)

    def _drawn(self, tokens: Tokens, candidates_bt: torch.Tensor) -> torch.Tensor:
        """`ratio` of the tokens of all ranks: the candidates with the smallest random numbers."""
        tokens_of_all = len(tokens.gather(tokens.logps_bt.detach()[tokens.mask_bt.bool()]))
        wanted = max(int(self.ratio * tokens_of_all), 1)
        random_bt = torch.where(candidates_bt, self._random(tokens), torch.inf)
        drawn = tokens.gather(random_bt[candidates_bt]).sort().values
        count = min(wanted, len(drawn))  # on all ranks
        self.left_out = count if tokens.step != self.step else self.left_out + count
        self.step = tokens.step
        if count == 0:
            return torch.zeros_like(candidates_bt)
        return candidates_bt & (random_bt <= drawn[count - 1])

    def _random(self, tokens: Tokens) -> torch.Tensor:
        """From a separate generator, so that the random numbers of training are unaffected."""
        trainer = self.trainer
        words = (trainer.args.seed, tokens.step, micro_batch(trainer), trainer.accelerator.process_index)
        generator = torch.Generator().manual_seed(int.from_bytes(sha256(repr(words).encode()).digest()[:7], "big"))
        return torch.rand(tokens.logps_bt.shape, generator=generator).to(tokens.logps_bt.device)

    def _is_clipped(self, tokens: Tokens) -> torch.Tensor:
        ratio_bt = (tokens.logps_bt.detach() - tokens.old_logps_bt).exp()
        above_bt = (ratio_bt > 1 + self.trainer.epsilon_high) & (tokens.advantages_bt > 0)
        return above_bt | (ratio_bt < 1 - self.trainer.epsilon_low) & (tokens.advantages_bt < 0)

    def metrics(self) -> dict[str, float]:
        return {"tokens_left_out": float(self.left_out)}


class KlCov(Explorer):
    """Args: ratio of tokens to penalize (2e-3 for 7B models, 2e-4 for 32B); weight of the penalty."""

    def __init__(self, ratio: float = 2e-3, weight: float = 1.0) -> None:
        check_fraction("kl_cov", ratio=ratio)
        check_positive("kl_cov", weight=weight)
        self.ratio, self.weight = ratio, weight

    def check(self, training: GRPOConfig) -> None:
        if updates_per_rollout(training) < 2:
            raise ConfigError(
                "explorer kl_cov does nothing with one update per rollout: set steps_per_generation (or "
                "num_iterations) above gradient_accumulation_steps"
            )

    def extra_loss(self, tokens: Tokens, model: Any) -> torch.Tensor | None:
        distance_bt = (tokens.logps_bt - tokens.old_logps_bt).abs()
        return self.weight * tokens.token_mean(torch.where(self._penalized(tokens), distance_bt, 0.0))

    def _penalized(self, tokens: Tokens) -> torch.Tensor:
        """(B, T) this rank's part of the top tokens of all ranks; their number does not depend on ties."""
        inside_bt = tokens.mask_bt.bool()
        own = token_covariance(tokens)[inside_bt]
        every = tokens.gather(own)
        wanted = min(max(int(self.ratio * len(every)), 1), len(every))
        chosen = torch.zeros_like(every, dtype=torch.bool)
        chosen[every.topk(wanted).indices] = True
        counts = tokens.gather(torch.tensor([float(len(own))], device=own.device))
        first = int(counts[: self.trainer.accelerator.process_index].sum())
        penalized_bt = torch.zeros_like(inside_bt)
        penalized_bt[inside_bt] = chosen[first : first + len(own)]
        return penalized_bt
