"""Base anchoring: on correct base samples of training problems the policy is held at the base's probabilities.

DPH-RL (Li et al., arXiv 2509.07430): loss + eta x mean over tokens of correct base samples of a divergence between
base and policy. Here a problem may be both anchored and trained on; the paper splits them. `gate` follows PBA (arXiv
2607.20543): only problems that the base rarely solves are anchored. `weighting: unit` is our addition: every distinct
correct answer is drawn equally often, including the rare ones.

With lp and lb the log-probabilities of a token under policy and base, and u = exp(lp - lb), the divergence is

    forward   u - ln u - 1                      KL(base || policy), in the low-variance form k3
    js        u ln u - (u + 1) ln((u + 1) / 2)  twice the Jensen-Shannon divergence

Both are generators of f-divergences: 0, their minimum, at lp = lb. Only correct samples are drawn, which is not the
base's distribution: each token is still held at its base probability. `rehearsal` raises them all instead.

Each micro-batch takes a forward pass of the base besides what `rehearsing.py` says: of the KL reference if there is one
(`beta > 0`), otherwise of a separate copy. The base's log-probabilities are computed on the fly rather than stored,
because a run of long completions draws only a small part of the samples.
"""

from collections.abc import Callable

import torch

from offleash.callbacks.policy.frozen_base import frozen_base
from offleash.callbacks.policy.trl_seam import scoring
from offleash.eval.errors import ConfigError
from offleash.train.explorers.base import ExplorerTrainer
from offleash.train.explorers.samples.rehearsing import BaseRehearsing


def forward_k3(lp: torch.Tensor, lb: torch.Tensor) -> torch.Tensor:
    """Gradient in lp: u - 1."""
    return (lp - lb).exp() - (lp - lb) - 1


def js(lp: torch.Tensor, lb: torch.Tensor) -> torch.Tensor:
    """Gradient in lp: u ln(2 u / (u + 1))."""
    u = (lp - lb).exp()
    return u * (lp - lb) - (u + 1) * ((u + 1) / 2).log()


DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"forward": forward_k3, "js": js}


class Anchor(BaseRehearsing):
    """Args:
    eta: weight of the divergence; 0.01 to 0.05 (forward) and 0.05 to 0.2 (js) in the paper.
    kind: forward or js.
    weighting: sample (correct base samples are equally likely) or unit (distinct correct answers are).
    gate: only problems whose base success rate is at most this.
    problems: the number of training problems, taken from the start.
    k: base samples per problem.
    batch: samples per micro-batch, over all ranks; None takes a quarter of its rollouts.
    fresh: draw base samples for the run's own seed, instead of one set for all seeds.
    """

    name = "anchor"

    def __init__(
        self,
        eta: float = 0.05,
        kind: str = "forward",
        weighting: str = "sample",
        gate: float = 1.0,
        problems: int = 1024,
        k: int = 32,
        batch: int | None = None,
        fresh: bool = False,
    ) -> None:
        if kind == "nll":
            raise ConfigError("kind nll of anchor is an explorer of its own: name it rehearsal, and leave kind out")
        if kind not in DIVERGENCES:
            raise ConfigError(f"kind of anchor must be one of {', '.join(DIVERGENCES)}, got {kind!r}")
        super().__init__(eta, weighting, gate, problems, k, batch, fresh)
        self.kind = kind

    def attach(self, trainer: ExplorerTrainer) -> None:
        super().attach(trainer)
        self.base = frozen_base(trainer)

    def token_loss(self, logps_bt: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        with scoring(self.trainer), self.base.scored() as base:
            base_bt = self.logps(base, inputs)
        return DIVERGENCES[self.kind](logps_bt, base_bt)
