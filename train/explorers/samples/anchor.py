"""Base anchoring: correct base samples of training problems are rehearsed, so that the policy does not unlearn them.

DPH-RL (Li et al., arXiv 2509.07430): loss + eta x mean over tokens of correct base samples of a divergence between
base and policy. Here a problem may be both rehearsed and trained on; the paper splits them. `gate` follows PBA (arXiv
2607.20543): only problems that the base rarely solves are anchored. `weighting: unit` is our addition: every distinct
correct answer is rehearsed equally often, including the rare ones.

With lp and lb the log-probabilities of a token under policy and base, and u = exp(lp - lb), the divergence is

    forward   u - ln u - 1                      KL(base || policy), in the low-variance form k3
    js        u ln u - (u + 1) ln((u + 1) / 2)  twice the Jensen-Shannon divergence
    nll       -lp                               the cross-entropy: forward KL up to a constant, without a base model

The first two are generators of f-divergences: 0, their minimum, at lp = lb. Only correct samples are rehearsed, which
is not the base's distribution: forward and js still hold each token at its base probability, while nll raises them all.

Cost: `problems` x `k` base samples, once for all runs (`base_samples.py`). In each micro-batch a forward and a backward
pass of the policy over the rehearsal batch and, except for `nll`, a forward pass of the base: the KL reference if there
is one (`beta > 0`), otherwise a separate copy. The base's log-probabilities are computed on the fly rather than stored,
because a run of long completions rehearses only a small part of the samples.

The batch is a function of seed, step and micro-batch: nothing is saved in checkpoints.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from offleash.callbacks.policy.frozen_base import frozen_base
from offleash.callbacks.policy.sampler import scoring_inputs
from offleash.callbacks.policy.trl_seam import (
    text_tokenizer,
    token_logps,
    tokenize_prompts,
    without_gradient_checkpointing,
)
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.sampling import derive_seed
from offleash.train.explorers.base import Explorer, ExplorerTrainer, Tokens
from offleash.train.explorers.checks import check_at_least_1, check_fraction, check_positive
from offleash.train.explorers.samples.base_samples import Solved, base_solutions, completion_ids, unit_weights


def forward_k3(lp: torch.Tensor, lb: torch.Tensor) -> torch.Tensor:
    """Gradient in lp: u - 1."""
    return (lp - lb).exp() - (lp - lb) - 1


def js(lp: torch.Tensor, lb: torch.Tensor) -> torch.Tensor:
    """Gradient in lp: u ln(2 u / (u + 1))."""
    u = (lp - lb).exp()
    return u * (lp - lb) - (u + 1) * ((u + 1) / 2).log()


def nll(lp: torch.Tensor, lb: torch.Tensor) -> torch.Tensor:
    """Gradient in lp: -1, independent of the base."""
    return -lp


DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]
DIVERGENCES = {"forward": forward_k3, "js": js, "nll": nll}


class Rehearsal(NamedTuple):
    prompt_ids: list[int]
    completion_ids: list[int]


class Anchor(Explorer):
    """Args:
    eta: weight of the divergence; 0.01 to 0.05 (forward) and 0.05 to 0.2 (js) in the paper.
    kind: forward, js or nll.
    weighting: sample (correct base samples are equally likely) or unit (distinct correct answers are).
    gate: only problems whose base success rate is at most this.
    problems: the number of training problems, taken from the start.
    k: base samples per problem.
    batch: rehearsal samples per micro-batch, over all ranks; None takes a quarter of its rollouts.
    """

    text_only = True

    def __init__(
        self,
        eta: float = 0.05,
        kind: str = "forward",
        weighting: str = "sample",
        gate: float = 1.0,
        problems: int = 1024,
        k: int = 32,
        batch: int | None = None,
    ) -> None:
        if kind not in DIVERGENCES:
            raise ConfigError(f"kind of anchor must be one of {', '.join(DIVERGENCES)}, got {kind!r}")
        if weighting not in ("sample", "unit"):
            raise ConfigError(f"weighting of anchor must be sample or unit, got {weighting!r}")
        check_positive("anchor", eta=eta)
        check_fraction("anchor", gate=gate)
        check_at_least_1("anchor", problems=problems, k=k, batch=batch)
        self.eta, self.kind, self.weighting, self.gate = eta, kind, weighting, gate
        self.problems, self.k, self.batch = problems, k, batch
        self.samples: list[Rehearsal] = []
        self.weights = np.zeros(0)
        self.step, self.micro_batch = -1, 0

    def attach(self, trainer: ExplorerTrainer) -> None:
        super().attach(trainer)
        self.base = frozen_base(trainer)

    def prepare(self, step: int) -> None:
        """Load or draw the base samples to rehearse."""
        trainer = self.trainer
        solved = base_solutions(trainer, trainer.verifier.task.problems[: self.problems], self.k, step)
        chosen = [problem for problem in solved if len(problem.completions) / self.k <= self.gate]
        if not chosen:
            raise ConfigError(
                f"anchor has nothing to rehearse: in {self.k} samples the base solves {len(solved)} of the first "
                f"{self.problems} training problems, none at a rate of at most {self.gate}; raise problems, k or gate"
            )
        self.samples, self.weights = self._rehearsals(chosen), self._weights(chosen)
        if trainer.accelerator.is_local_main_process:
            say(f"offleash: anchor: {len(self.samples)} correct base samples of {len(chosen)} training problems")

    def _rehearsals(self, chosen: list[Solved]) -> list[Rehearsal]:
        prompts = tokenize_prompts(self.trainer, [solved.problem.prompt for solved in chosen]).ids
        return [
            Rehearsal(prompt, ids)
            for prompt, solved in zip(prompts, chosen, strict=True)
            for ids in completion_ids(self.trainer, solved.completions)
        ]

    def _weights(self, chosen: list[Solved]) -> np.ndarray:
        units = [(solved.problem.id, answer) for solved in chosen for answer in solved.answers]
        return unit_weights(units if self.weighting == "unit" else range(len(units)))

    def extra_loss(self, tokens: Tokens, model: Any) -> torch.Tensor:
        rows, all_tokens = self._share(tokens.step)
        trainer = self.trainer
        inputs = scoring_inputs(rows, text_tokenizer(trainer).pad_token_id, trainer.accelerator.device)
        lp_bt = self._logps(model, inputs)
        lb_bt = lp_bt.detach() if self.kind == "nll" else self._base_logps(inputs)
        distance = (DIVERGENCES[self.kind](lp_bt, lb_bt) * inputs["mask"]).sum()
        # Ranks' gradients are averaged: the mean over all ranks' tokens is this rank's sum times the number of ranks.
        mean = distance * trainer.accelerator.num_processes / all_tokens
        return self.eta * mean / trainer.current_gradient_accumulation_steps

    def _share(self, step: int) -> tuple[list[Rehearsal], int]:
        """This rank's part of the micro-batch's rehearsal, and the number of completion tokens in all parts."""
        self.step, self.micro_batch = step, self.micro_batch + 1 if step == self.step else 0
        ranks, rank = self.trainer.accelerator.num_processes, self.trainer.accelerator.process_index
        wanted = self.batch or self.trainer.args.per_device_train_batch_size * ranks // 4
        size = -(-max(wanted, 1) // ranks)
        rng = np.random.default_rng(derive_seed("anchor", self.trainer.args.seed, step, self.micro_batch))
        drawn = [self.samples[i] for i in rng.choice(len(self.samples), size * ranks, p=self.weights)]
        return drawn[rank * size :][:size], sum(len(row.completion_ids) for row in drawn)

    def _logps(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        rows = inputs["input_ids"], inputs["attention_mask"], inputs["mask"].size(1)
        return token_logps(self.trainer, model, *rows)[0]

    def _base_logps(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad(), without_gradient_checkpointing(self.trainer), self.base.scored() as base:
            return self._logps(base, inputs)
