"""A control: a random bonus. A variant that does no better than this gains from noise, not from its idea.

Each answer to a problem gets a random number, the same throughout a run and another one under another training `seed`;
centered within the group. All-correct groups get none, as with the real bonuses.
"""

import hashlib

import torch

from offleash.train.explorers.base import Explorer, Rollouts, all_correct
from offleash.train.explorers.checks import check_positive


class Placebo(Explorer):
    """Args: weight, the largest bonus before centering; seed of the bonus, in addition to the training seed."""

    needs_answers = True

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
        return advantages_pg + self.weight * torch.where(all_correct(rollouts.rewards_pg), 0.0, bonus_pg)

    def _number(self, problem: str, answer: str | None) -> float:
        """Uniform on (-1, 1)."""
        digest = hashlib.sha256(f"{self.trainer.args.seed}/{self.seed}/{problem}/{answer}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**63 - 1
