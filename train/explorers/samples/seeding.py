"""Seeding: one verified off-policy trace replaces a rollout of each group (LUFFY, arXiv 2504.14945).

Traces are the base's own rare correct answers (`source: base`) or a teacher's, from a file. The trace is rewarded like
a rollout and is part of its group's mean. The policy did not sample its tokens, so their importance ratio is replaced
by f(p) = p / (p + gamma), which learns most from tokens that the policy gives a probability of about gamma:

    d/d ln p of -A f(p)  =  -A gamma p / (p + gamma)^2

TRL's loss has the gradient -A in ln p as long as policy and drawing policy agree, so an advantage of
A gamma p / (p + gamma)^2 gives the same update; hence one update per rollout and token-level ratios only.

A group's advantages are divided by its standard deviation and averaged over tokens as in the rest of the recipe; LUFFY
does neither (`scale_rewards: none`, `loss_type: dr_grpo`).

With `source: base` training problems get `k` base samples each before step 1 (`base_samples.py`). Problems without a
right one are left alone. The logged reward is the policy's own; `REWARD_WITH_TRACES` includes the traces.
TRL's `kl` and `entropy` are over all tokens of the batch, a trace's too; so is the KL penalty, which LUFFY has not.
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from trl import GRPOConfig

from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.trl_seam import train_sampler
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem
from offleash.eval.sampling import derive_seed
from offleash.train.explorers.base import Explorer, ExplorerTrainer, Rollouts, Tokens
from offleash.train.explorers.checks import check_at_least_1, check_positive, updates_per_rollout
from offleash.train.explorers.samples.base_samples import (
    Solved,
    base_solutions,
    completion_ids,
    teacher_solutions,
    unit_weights,
)


def seeded_advantage(advantages: torch.Tensor, logps: torch.Tensor, gamma: float) -> torch.Tensor:
    """The advantage under which TRL's loss has the gradient of -A p / (p + gamma)."""
    p = logps.detach().exp()
    return advantages * gamma * p / (p + gamma) ** 2


class Seeding(Explorer):
    """Args:
    source: base, or a JSONL file of teacher traces with problem_id and completion; wrong ones are skipped.
    gamma: of the off-policy weight p / (p + gamma).
    problems: with source base, the number of training problems to sample, taken from the start, the same for every
        seed; None takes those that this run will visit, which depend on the seed unless it visits them all.
    k: base samples per problem.
    """

    rows_apart = True

    def __init__(self, source: str = "base", gamma: float = 0.1, problems: int | None = None, k: int = 16) -> None:
        check_positive("seeding", gamma=gamma)
        check_at_least_1("seeding", problems=problems, k=k)
        self.source, self.gamma, self.problems, self.k = source, gamma, problems, k
        self.choices: dict[str, tuple[list[list[int]], np.ndarray]] = {}
        self.seen: dict[str, float] = {}

    def check(self, training: GRPOConfig) -> None:
        if updates_per_rollout(training) > 1 or training.importance_sampling_level != "token":
            raise ConfigError(
                "seeding weights each token of a trace once: it needs importance_sampling_level token and one update "
                "per rollout (steps_per_generation = gradient_accumulation_steps, num_iterations = 1)"
            )

    def prepare(self, step: int) -> None:
        """Load or draw the traces."""
        trainer = self.trainer
        if self.source == "base":
            problems = trainer.verifier.task.problems
            wanted = visited(trainer, problems) if self.problems is None else problems[: self.problems]
            solved = base_solutions(trainer, wanted, self.k, step)
        else:
            task, path = trainer.verifier.task, Path(self.source)
            solved = Ranks(trainer.accelerator).from_main(lambda: teacher_solutions(task, path))
        choices = {problem.problem.id: self._choice(problem) for problem in solved}
        self.choices = {name: choice for name, choice in choices.items() if choice[0]}
        if not self.choices:
            raise ConfigError(f"seeding found no correct trace of a training problem in {self.source!r}")
        if trainer.accelerator.is_local_main_process:
            say(f"offleash: seeding: traces of {len(self.choices)} training problems")

    def _choice(self, solved: Solved) -> tuple[list[list[int]], np.ndarray]:
        """The traces that fit into a completion; rare answers have the same weight as common ones."""
        limit = self.trainer.max_completion_length
        ids = completion_ids(self.trainer, solved.completions)
        fitting = [(row, answer) for row, answer in zip(ids, solved.answers, strict=True) if len(row) <= limit]
        return [row for row, _ in fitting], unit_weights([answer for _, answer in fitting])

    def traces(self, problem_ids: Sequence[str]) -> list[list[int] | None]:
        return [self._trace(name) for name in problem_ids]

    def _trace(self, name: str) -> list[int] | None:
        """The choice is a function of seed, step and problem."""
        if name not in self.choices:
            return None
        rows, weights = self.choices[name]
        seed = derive_seed("seeding", self.trainer.args.seed, self.trainer.state.global_step, name)
        return list(rows[np.random.default_rng(seed).choice(len(rows), p=weights)])

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        self.seen = {"off_policy": rollouts.off_policy_pg.float().mean().item()}
        return advantages_pg

    def token_advantages(self, tokens: Tokens) -> torch.Tensor:
        seeded_bt = seeded_advantage(tokens.advantages_bt, tokens.logps_bt, self.gamma)
        return torch.where(tokens.off_policy_b[:, None], seeded_bt, tokens.advantages_bt)

    def metrics(self) -> dict[str, float]:
        return self.seen


def visited(trainer: ExplorerTrainer, problems: Sequence[Problem]) -> list[Problem]:
    """The problems that the run visits, in the task's order.

    TRL's sampler shuffles with a generator of its own and repeats a generation batch for every micro-batch made of it.
    """
    args, sampler = trainer.args, train_sampler(trainer)
    steps = args.max_steps if args.max_steps > 0 else len(sampler)
    indices = set(islice(sampler, steps * args.gradient_accumulation_steps * args.generation_batch_size))
    ids = set(trainer.problem_ids(trainer.train_dataset.select(sorted(indices))))
    return [problem for problem in problems if problem.id in ids]
