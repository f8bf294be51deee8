"""Outcome exploration, UCB form: an answer rarely given to a problem before gets a higher advantage.

Song et al., arXiv 2509.06941, UCB-Con: b = min(1, 1 / sqrt(N(x, a))) - b0, N counting the answer over all training so
far; with b0 = 0.5 it is negative after four. Added to the advantage; 0 in all-correct groups and for a completion
without an answer. The counts are part of a checkpoint. The paper excludes the tokens of the final answer from the
bonus; here every token of the completion gets it.
"""

import json
from collections import Counter
from pathlib import Path

import torch

from offleash.eval.files import write_atomic
from offleash.train.explorers.base import Explorer, Rollouts, all_correct
from offleash.train.explorers.checks import check_not_negative, check_positive

FILE = "outcome_counts.json"


class OutcomeUcb(Explorer):
    """Args: weight of the bonus; baseline, the paper's b0."""

    needs_answers = True

    def __init__(self, weight: float = 0.2, baseline: float = 0.5) -> None:
        check_positive("outcome_ucb", weight=weight)
        check_not_negative("outcome_ucb", baseline=baseline)
        self.weight, self.baseline = weight, baseline
        self.counts: dict[str, Counter[str]] = {}

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        rows = [
            self._bonus(self.counts.setdefault(problem, Counter()), answers_g)
            for problem, answers_g in zip(rollouts.problem_ids, rollouts.answers_pg, strict=True)
        ]
        bonus_pg = torch.where(all_correct(rollouts.rewards_pg), 0.0, torch.tensor(rows))
        return advantages_pg + self.weight * bonus_pg

    def _bonus(self, counts: "Counter[str]", answers_g: tuple[str | None, ...]) -> list[float]:
        """The group's own rollouts are counted, so that an answer given for the first time has N = 1."""
        counts.update(answer for answer in answers_g if answer is not None)
        return [0.0 if a is None else min(1.0, counts[a] ** -0.5) - self.baseline for a in answers_g]

    def metrics(self) -> dict[str, float]:
        return {"answers_seen": float(sum(map(len, self.counts.values())))}

    def save(self, folder: Path) -> None:
        if self.trainer.accelerator.is_main_process:
            write_atomic(folder / FILE, json.dumps(self.counts, sort_keys=True).encode())

    def load(self, folder: Path) -> None:
        self.counts = {p: Counter(counts) for p, counts in json.loads((folder / FILE).read_text()).items()}
