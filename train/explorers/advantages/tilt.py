"""Tilt: the KL to the base is part of the reward, so that the optimum is a reweighting of the base.

The objective is E[R - tau log(pi(y) / q(y))] = E[R] - tau KL(pi || q), over whole completions y with q the base. Its
maximum is the tilt pi(y) = q(y) exp(R(y) / tau) / Z: correct answers keep the base's proportions among each other. The
policy gradient has the advantage

    u_i = R_i - tau (log pi(y_i) - log q(y_i)),    A_i = u_i - mean of u over the other rollouts of the group

with no standard deviation, which would weigh problems differently. At the optimum u is tau log Z for every y: the
advantages vanish rollout by rollout, not only on average. GVPO (arXiv 2504.19599) and trajectory balance (FlowRL) have
the same optimum.

How this differs from TRL's `beta`, with the same gradient only for completions of one token: with
`use_bias_correction_kl` (TRL's default) a token's KL term has the gradient coefficient log(pi/q) of this token alone,
so no token learns what it does to the log-ratio of later ones; without it the expected gradient is that of the
*forward* KL. Here every token of a completion gets the log-ratio of all of them.

What keeps a run from the optimum in the lab is sampling: an answer that has become rare is hardly ever drawn, so
nothing calls it back. With texts drawn from all correct answers in each group, their shares stay the base's on the
training problems (`recipes/lab/tilt_limit.py`; recipes/variants/results). What else may, and what removes it:

- steps and learning rate: the optimum is far away (at tau = .3 the odds of a correct answer rise by exp(1 / tau) = 28),
  and the lab's schedule decays linearly: `max_steps`, `learning_rate`, `lr_scheduler_type: constant`;
- the KL term of TRL on top of this one: `beta: 0` (the base is then loaded as a copy of its own);
- a loss that divides each completion by its length is not the gradient of this objective: refused (`loss_type` grpo
  and sapo, bnpo, which divides each micro-batch by its tokens, and `importance_sampling_level: sequence`);
- several updates per rollout: ratios are clipped at `epsilon`, and the log-ratio is that of the policy that drew;
- noise: every token answers for the log-ratios of earlier ones too, which it cannot change. `credit: to_go` removes
  those terms, whose mean is 0;
- the model: to raise P by d costs the free tilt a KL of about d^2 / (2 P (1 - P)). A network shared by all problems can
  raise P only by learning to tell right from wrong, pays more, and has its own optimum of R - tau KL nearer to the
  base. `monitor/kl_base_k1` against the KL of the reweighting at the same pass@1 shows by how much. A smaller tau goes
  further, but along what the network can do, not along the tilt.
"""

import torch
from trl import GRPOConfig

from offleash.eval.errors import ConfigError
from offleash.train.explorers.base import Explorer, Rollouts, Tokens
from offleash.train.explorers.checks import check_not_by_length, check_positive


def tilted_advantages(rewards_pg: torch.Tensor, log_ratios_pg: torch.Tensor, tau: float) -> torch.Tensor:
    """(P, G) R - tau log(pi / q) less its mean over the others; 0 where reward or ratio is not known (NaN)."""
    values_pg = rewards_pg - tau * log_ratios_pg
    return less_the_others(values_pg, ~values_pg.isnan(), dim=1)


def less_the_others(values: torch.Tensor, known: torch.Tensor, dim: int) -> torch.Tensor:
    """Each known value less the mean of the other known ones along `dim`; 0 where there is no other.

    The baseline must not contain the value itself: it would shrink the gradient, by different amounts for rewards that
    are centered in a group and for log-ratios that are centered in a batch.
    """
    values = torch.where(known, values, 0.0)
    count = known.sum(dim, keepdim=True)
    others = (values.sum(dim, keepdim=True) - values) / (count - 1).clamp(min=1)
    return torch.where(known & (count > 1), values - others, 0.0)


def log_ratios_to_go(log_ratios_bt: torch.Tensor, mask_bt: torch.Tensor) -> torch.Tensor:
    """(B, T) the sum from each token on, less its mean over the other rows that have a token there.

    Where no other row of the micro-batch has one, as at the end of its longest completion and everywhere with one row,
    there is no baseline: the term is kept, with more variance, and not dropped.
    """
    known_bt = mask_bt.bool()
    to_go_bt = torch.where(known_bt, log_ratios_bt, 0.0).flip(1).cumsum(1).flip(1)
    alone_1t = known_bt.sum(0, keepdim=True) == 1
    return torch.where(known_bt & alone_1t, to_go_bt, less_the_others(to_go_bt, known_bt, dim=0))


class Tilt(Explorer):
    """Args:
    tau: the temperature of the tilt; the smaller, the further from the base.
    credit: sequence (a token gets the log-ratio of the whole completion) or to_go (only from this token on).
    """

    needs_logps = True
    needs_base_logps = True
    replaces_advantages = True
    splits_solved = True

    def __init__(self, tau: float = 0.3, credit: str = "sequence") -> None:
        check_positive("tilt", tau=tau)
        if credit not in ("sequence", "to_go"):
            raise ConfigError(f"credit of tilt must be sequence or to_go, got {credit!r}")
        self.tau, self.credit = tau, credit
        self.log_ratio, self.rows_apart = 0.0, credit == "sequence"

    def check(self, training: GRPOConfig) -> None:
        check_not_by_length("tilt", training)

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        assert rollouts.sequence_logps_pg is not None
        assert rollouts.base_logps_pg is not None
        log_ratios_pg = rollouts.sequence_logps_pg - rollouts.base_logps_pg
        self.log_ratio = log_ratios_pg.nanmean().item()
        if self.credit == "to_go":
            log_ratios_pg = torch.zeros_like(log_ratios_pg)  # enters by token
        return tilted_advantages(rollouts.rewards_pg, log_ratios_pg, self.tau)

    def token_advantages(self, tokens: Tokens) -> torch.Tensor:
        if self.credit == "sequence":
            return tokens.advantages_bt
        assert tokens.base_logps_bt is not None
        to_go_bt = log_ratios_to_go(tokens.old_logps_bt - tokens.base_logps_bt, tokens.mask_bt)
        return tokens.advantages_bt - self.tau * to_go_bt

    def metrics(self) -> dict[str, float]:
        return {"log_ratio": self.log_ratio}
