"""A control: a bonus that knows nothing. A variant that does no better gains from noise, not from its idea.

Answers get a random number each, the same for equal answers of a problem whenever it comes up in a run, others for
another `seed` of the training; centred in the group. All-right groups get none, as with the real ones.
"""

import hashlib

import torch

from offleash.train.explorers.base import Explorer, Rollouts, all_right
from offleash.train.explorers.checks import check_positive


class Placebo(Explorer):
    """Args: weight, the largest bonus before centring; seed, another draw of it, beside the training's own."""

    def __init__(self, weight: float = 0.2, seed: int = 0) -> None:
        check_positive("placebo", weight=weight)
        self.weight, self.seed = weight, seed

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        rows = [
            [self._number(problem, answer) for answer in answers_g]
            for problem, answers_g in zip(rollouts.problem_ids, rollouts.answers_pg, strict=True)
        ]
        bonus_pg = torch.tensor(rows)
        bonus_pg = bonus_pg - bonus_pg.mean(1, keepdim=True)
        return advantages_pg + self.weight * torch.where(all_right(rollouts.rewards_pg), 0.0, bonus_pg)

    def _number(self, problem: str, answer: str | None) -> float:
        """Uniform on (-1, 1)."""
        digest = hashlib.sha256(f"{self.trainer.args.seed}/{self.seed}/{problem}/{answer}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**63 - 1
