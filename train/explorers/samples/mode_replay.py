"""Mode replay: the policy's own correct rollouts are replayed, one of each verified answer class.

Re:Max (liv-daliberti/maxent-grpo, 2026-09): a bank keeps one exemplar e_c of each answer class c that the verifier has
accepted, at most `cap` a problem, and the loss is that of GRPO plus

    eta x -(1 / B) sum over c of log pi(e_c) / len(e_c)

uniform over the classes, so that a class which the policy hardly gives any more weighs as much as its favorite. There
are no samples besides the rollouts. It is `rehearsal` fed from training: it can keep what training has found, and
nothing else; the bank is empty before step 1.

Our choices: the B exemplars of a micro-batch are drawn from the whole bank, not from the problems of the batch, which a
short run sees once; the first exemplar of a class stays; once a problem has `cap` classes, no further one is added. A
correct rollout without an answer has no class and is not kept.

The bank is part of a checkpoint.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from offleash.callbacks.policy.trl_seam import tokenize_prompts
from offleash.eval.files import write_atomic
from offleash.train.explorers.base import ExplorerTrainer, Rollouts
from offleash.train.explorers.checks import check_at_least_1
from offleash.train.explorers.samples.rehearsing import Rehearsing, Sample

FILE = "mode_bank.json"


class ModeReplay(Rehearsing):
    """Args:
    eta: weight of the likelihood.
    cap: answer classes that are kept of one problem.
    batch: exemplars per micro-batch, over all ranks; None takes a quarter of its rollouts.
    """

    name = "mode_replay"
    needs_completions = True
    needs_answers = True

    def __init__(self, eta: float = 1.0, cap: int = 16, batch: int | None = None) -> None:
        super().__init__(eta, batch)
        check_at_least_1(self.name, cap=cap)
        self.cap = cap
        self.bank: dict[tuple[str, str], list[int]] = {}
        """(problem id, answer class) -> token ids, in the order in which they were found."""

    def attach(self, trainer: ExplorerTrainer) -> None:
        super().attach(trainer)
        self.prompts = {problem.id: problem.prompt for problem in trainer.verifier.task.problems}

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        """Unchanged; correct rollouts are banked here."""
        assert rollouts.completion_ids_pg is not None
        right_pg = (rollouts.rewards_pg == 1) & ~rollouts.off_policy_pg
        groups = zip(rollouts.problem_ids, rollouts.answers_pg, rollouts.completion_ids_pg, right_pg, strict=True)
        self._add([(p, a, list(ids)) for p, *rows in groups for a, ids, right in zip(*rows, strict=True) if right])
        return advantages_pg

    def _add(self, found: Sequence[tuple[str, str | None, list[int]]]) -> None:
        """(problem id, answer class, token ids) of correct rollouts."""
        sizes = Counter(problem for problem, _ in self.bank)
        new = []
        for problem, answer, ids in found:
            if answer is not None and ids and (problem, answer) not in self.bank and sizes[problem] < self.cap:
                self.bank[problem, answer] = ids
                sizes[problem] += 1
                new.append((problem, ids))
        if new:
            prompts = tokenize_prompts(self.trainer, [self.prompts[problem] for problem, _ in new]).ids
            self.samples += [Sample(prompt, ids) for prompt, (_, ids) in zip(prompts, new, strict=True)]

    def row_weights(self, rows: Sequence[Sample], drawn: Sequence[Sample]) -> list[float]:
        """The mean over exemplars of the mean over tokens."""
        return [1 / (len(drawn) * len(row.completion_ids)) for row in rows]

    def metrics(self) -> dict[str, float]:
        return {"modes_banked": float(len(self.samples))}

    def save(self, folder: Path) -> None:
        if self.trainer.accelerator.is_main_process:
            found = [(problem, answer, ids) for (problem, answer), ids in self.bank.items()]
            write_atomic(folder / FILE, json.dumps(found).encode())

    def load(self, folder: Path) -> None:
        self.bank, self.samples = {}, []
        self._add(json.loads((folder / FILE).read_text()))
