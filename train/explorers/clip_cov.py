"""Clip-Cov: a few random tokens among those that would lower the entropy most are left out of the update.

Cui et al., arXiv 2505.22617, eq. 10-11: of the tokens with low < cov < high that the ratio clip does not touch anyway,
int(ratio * tokens), at least one, are drawn and their policy loss is 0 (the KL term stays). The paper's scripts open
the ratio clip to 1; here it is the recipe's `epsilon`.
"""

from hashlib import sha256

import torch

from offleash.eval.errors import ConfigError
from offleash.train.explorers.base import Explorer, Tokens
from offleash.train.explorers.covariance import token_covariance
from offleash.train.explorers.ranges import require_share


class ClipCov(Explorer):
    """Args: ratio of tokens left out; low and high, the band of covariance they come from."""

    def __init__(self, ratio: float = 2e-4, low: float = 1.0, high: float = 5.0) -> None:
        require_share("clip_cov", ratio=ratio)
        if not low < high:
            raise ConfigError(f"low of explorer clip_cov must be below high, got {low} and {high}")
        self.ratio, self.low, self.high = ratio, low, high
        self.left_out = 0

    def token_advantages(self, tokens: Tokens) -> torch.Tensor:
        cov_bt = token_covariance(tokens)
        candidates_bt = (cov_bt > self.low) & (cov_bt < self.high) & ~self._is_clipped(tokens)
        out_bt = self._drawn(tokens, candidates_bt)
        return torch.where(out_bt, 0.0, tokens.advantages_bt)

    def _drawn(self, tokens: Tokens, candidates_bt: torch.Tensor) -> torch.Tensor:
        """As many as the ratio of all ranks' tokens says, those with the smallest random numbers of all ranks."""
        tokens_of_all = len(tokens.gather(tokens.logps_bt.detach()[tokens.mask_bt.bool()]))
        wanted = max(int(self.ratio * tokens_of_all), 1)
        random_bt = torch.where(candidates_bt, self._random(tokens), torch.inf)
        drawn = tokens.gather(random_bt[candidates_bt]).sort().values
        self.left_out = min(wanted, len(drawn))  # on all ranks
        if self.left_out == 0:
            return torch.zeros_like(candidates_bt)
        return candidates_bt & (random_bt <= drawn[self.left_out - 1])

    def _random(self, tokens: Tokens) -> torch.Tensor:
        """From a generator of its own, so that the training's random numbers stay what they are."""
        trainer = self.trainer
        micro_batch = trainer._step % trainer.args.gradient_accumulation_steps
        words = (trainer.args.seed, tokens.step, micro_batch, trainer.accelerator.process_index)
        generator = torch.Generator().manual_seed(int.from_bytes(sha256(repr(words).encode()).digest()[:7], "big"))
        return torch.rand(tokens.logps_bt.shape, generator=generator).to(tokens.logps_bt.device)

    def _is_clipped(self, tokens: Tokens) -> torch.Tensor:
        ratio_bt = (tokens.logps_bt.detach() - tokens.old_logps_bt).exp()
        above_bt = (ratio_bt > 1 + self.trainer.epsilon_high) & (tokens.advantages_bt > 0)
        return above_bt | (ratio_bt < 1 - self.trainer.epsilon_low) & (tokens.advantages_bt < 0)

    def metrics(self) -> dict[str, float]:
        return {"tokens_left_out": float(self.left_out)}
