"""Outcome exploration, batch form: an answer that many rollouts of the group share gets a lower advantage.

Song et al., arXiv 2509.06941: b_i = -(1/n) #{j != i : a_j = a_i}, added to the advantage; 0 in all-correct groups. A
completion without an answer gets no bonus and is not counted. The paper excludes the tokens of the final answer from
the bonus; here every token of the completion gets it.
"""

from collections import Counter

import torch

from offleash.train.explorers.base import Explorer, Rollouts, all_correct
from offleash.train.explorers.checks import check_positive


def shared_answers(answers_pg: tuple[tuple[str | None, ...], ...]) -> torch.Tensor:
    """(P, G) how many other rollouts of the group gave the same answer."""
    counts = [Counter(answers_g) for answers_g in answers_pg]
    rows = [[0 if a is None else c[a] - 1 for a in answers_g] for answers_g, c in zip(answers_pg, counts, strict=True)]
    return torch.tensor(rows, dtype=torch.float32)


class OutcomeBatch(Explorer):
    """Args: weight of the bonus; the paper does not give it, 0.1 to 0.5 are worth trying."""

    needs_answers = True

    def __init__(self, weight: float = 0.2) -> None:
        check_positive("outcome_batch", weight=weight)
        self.weight = weight

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        others_pg = shared_answers(rollouts.answers_pg)
        bonus_pg = -others_pg / others_pg.shape[1]
        return advantages_pg + self.weight * torch.where(all_correct(rollouts.rewards_pg), 0.0, bonus_pg)
