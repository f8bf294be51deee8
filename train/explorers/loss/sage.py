"""SAGE: the KL penalty draws the policy to a reference that is raised where the policy is undecided (arXiv 2605.18864).

The reference pi_ref of TRL's KL term is replaced by w pi_ref, by token (the branch guide of tally0818/SAGE)

    w = clip(1 + ratio relu(H - threshold), low, high)

with H the policy's entropy at the token, without gradient. In the form k3 of the KL, with lp and lr the
log-probabilities under policy and reference, that is a change of the loss by

    beta (exp(lr - lp) (w - 1) - log w)

which is what is added here; TRL's logged `kl` stays that to the reference itself. As TRL's own term it is multiplied by
the importance ratio if `use_bias_correction_kl` (TRL's default): its gradient is then that of the reverse KL to w
pi_ref. SAGE's own trainer has no such factor. Below `threshold` everywhere, it does nothing: its default is the
paper's, for large vocabularies.
"""

import math
from typing import Any

import torch
from trl import GRPOConfig

from offleash.eval.errors import ConfigError
from offleash.train.explorers.base import Explorer, Tokens
from offleash.train.explorers.checks import check_not_negative, check_positive


def branch_guide(entropies: torch.Tensor, ratio: float, threshold: float, low: float, high: float) -> torch.Tensor:
    """The factor w of the reference's probability."""
    return (1 + ratio * torch.relu(entropies.detach() - threshold)).clamp(low, high)


def k3_change(lp: torch.Tensor, lr: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """k3 to w pi_ref less k3 to pi_ref."""
    return (lr - lp).exp() * (w - 1) - w.log()


class Sage(Explorer):
    """Args:
    ratio: how fast w grows with the entropy.
    threshold: the entropy, in nats, above which it does.
    low, high: bounds of w.
    """

    rows_apart = True

    def __init__(self, ratio: float = 0.3, threshold: float = 1.2, low: float = 0.6, high: float = 1.4) -> None:
        check_positive("sage", ratio=ratio, low=low)
        check_not_negative("sage", threshold=threshold)
        if not low <= 1 <= high:
            raise ConfigError(f"low and high of explorer sage must enclose 1, got {low} and {high}")
        self.ratio, self.threshold, self.low, self.high = ratio, threshold, low, high
        self.step, self.guides = -1, list[float]()

    def check(self, training: GRPOConfig) -> None:
        if training.beta == 0:
            raise ConfigError("explorer sage reshapes the KL reference and does nothing without one: set beta above 0")
        if training.importance_sampling_level != "token":
            raise ConfigError("explorer sage works by token: set importance_sampling_level to token")

    def extra_loss(self, tokens: Tokens, model: Any) -> torch.Tensor:
        if tokens.base_logps_bt is None:
            raise ConfigError(
                "explorer sage needs a KL reference that stays: it cannot be combined with one that is reset"
            )
        w_bt = branch_guide(tokens.entropies_bt, self.ratio, self.threshold, self.low, self.high)
        inside_bt = tokens.mask_bt.bool()
        guide = tokens.gather(w_bt[inside_bt]).mean().item()
        self.guides = [guide] if tokens.step != self.step else [*self.guides, guide]
        self.step = tokens.step
        change_bt = k3_change(tokens.logps_bt, tokens.base_logps_bt, w_bt)
        if self.trainer.args.use_bias_correction_kl:
            change_bt = change_bt * (tokens.logps_bt - tokens.old_logps_bt).exp()
        return self.trainer.args.beta * tokens.token_mean(torch.where(inside_bt, change_bt, 0.0))

    def metrics(self) -> dict[str, float]:
        return {"guide": math.fsum(self.guides) / len(self.guides)} if self.guides else {}
