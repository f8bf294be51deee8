"""What anchoring, rehearsal and mode replay share: a loss on stored correct samples, beside the rollouts.

In each micro-batch `batch` samples are drawn from those stored, and eta x their loss is added. The draw is a function
of seed, step and micro-batch. It costs a forward and a backward pass of the policy over these samples.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from offleash.callbacks.policy.sampler import scoring_inputs
from offleash.callbacks.policy.trl_seam import text_tokenizer, token_logps, tokenize_prompts
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.sampling import derive_seed
from offleash.train.explorers.base import Explorer, Tokens
from offleash.train.explorers.checks import check_at_least_1, check_fraction, check_positive
from offleash.train.explorers.samples.base_samples import Solved, base_solutions, completion_ids, unit_weights


class Sample(NamedTuple):
    prompt_ids: list[int]
    completion_ids: list[int]


class Rehearsing(Explorer):
    """Draws from `samples` with the probabilities `weights`; None is uniform. Without samples there is no loss."""

    text_only = True
    rows_apart = True
    name: ClassVar[str]

    def __init__(self, eta: float, batch: int | None) -> None:
        check_positive(self.name, eta=eta)
        check_at_least_1(self.name, batch=batch)
        self.eta, self.batch = eta, batch
        self.samples: list[Sample] = []
        self.weights: np.ndarray | None = None
        self.step, self.micro_batch = -1, 0

    def token_loss(self, logps_bt: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """(B, T) from the policy's log-probabilities."""
        return -logps_bt

    def row_weights(self, rows: Sequence[Sample], drawn: Sequence[Sample]) -> list[float]:
        """Of each token of these rows, of all that were drawn: here the loss is the mean over their tokens."""
        return [1 / sum(len(row.completion_ids) for row in drawn)] * len(rows)

    def extra_loss(self, tokens: Tokens, model: Any) -> torch.Tensor | None:
        if not self.samples:
            return None
        rows, drawn = self._share(tokens.step)
        trainer = self.trainer
        inputs = scoring_inputs(rows, text_tokenizer(trainer).pad_token_id, trainer.accelerator.device)
        loss_b = (self.token_loss(self.logps(model, inputs), inputs) * inputs["mask"]).sum(1)
        mean = (loss_b * torch.tensor(self.row_weights(rows, drawn), device=loss_b.device)).sum()
        # Ranks' gradients are averaged: the mean over all ranks' samples is this rank's sum times the number of ranks.
        return self.eta * mean * trainer.accelerator.num_processes / trainer.current_gradient_accumulation_steps

    def _share(self, step: int) -> tuple[list[Sample], list[Sample]]:
        """This rank's part of the micro-batch's samples, and those of all ranks."""
        self.step, self.micro_batch = step, self.micro_batch + 1 if step == self.step else 0
        ranks, rank = self.trainer.accelerator.num_processes, self.trainer.accelerator.process_index
        wanted = self.batch or self.trainer.args.per_device_train_batch_size * ranks // 4
        size = -(-max(wanted, 1) // ranks)
        rng = np.random.default_rng(derive_seed(self.name, self.trainer.args.seed, step, self.micro_batch))
        drawn = [self.samples[i] for i in rng.choice(len(self.samples), size * ranks, p=self.weights)]
        return drawn[rank * size :][:size], drawn

    def logps(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        rows = inputs["input_ids"], inputs["attention_mask"], inputs["mask"].size(1)
        return token_logps(self.trainer, model, *rows)[0]


class BaseRehearsing(Rehearsing):
    """The samples are the base's correct completions of training problems, drawn before the first step.

    It costs `problems` x `k` base samples, once for all runs, or for each seed if they are `fresh` (`base_samples.py`).
    Nothing is saved in checkpoints.
    """

    def __init__(
        self, eta: float, weighting: str, gate: float, problems: int, k: int, batch: int | None, fresh: bool
    ) -> None:
        super().__init__(eta, batch)
        if weighting not in ("sample", "unit"):
            raise ConfigError(f"weighting of {self.name} must be sample or unit, got {weighting!r}")
        check_fraction(self.name, gate=gate)
        check_at_least_1(self.name, problems=problems, k=k)
        self.weighting, self.gate, self.problems, self.k, self.fresh = weighting, gate, problems, k, fresh

    def prepare(self, step: int) -> None:
        """Load or draw the base samples to rehearse."""
        trainer = self.trainer
        problems = trainer.verifier.task.problems[: self.problems]
        solved = base_solutions(trainer, problems, self.k, step, self.fresh)
        chosen = [problem for problem in solved if len(problem.completions) / self.k <= self.gate]
        if not chosen:
            raise ConfigError(
                f"{self.name} has nothing to rehearse: in {self.k} samples the base solves {len(solved)} of the first "
                f"{self.problems} training problems, none at a rate of at most {self.gate}; raise problems, k or gate"
            )
        self.samples, self.weights = self._tokenized(chosen), self._weights(chosen)
        if trainer.accelerator.is_local_main_process:
            say(f"offleash: {self.name}: {len(self.samples)} correct base samples of {len(chosen)} training problems")

    def _tokenized(self, chosen: list[Solved]) -> list[Sample]:
        prompts = tokenize_prompts(self.trainer, [solved.problem.prompt for solved in chosen]).ids
        return [
            Sample(prompt, ids)
            for prompt, solved in zip(prompts, chosen, strict=True)
            for ids in completion_ids(self.trainer, solved.completions)
        ]

    def _weights(self, chosen: list[Solved]) -> np.ndarray:
        units = [(solved.problem.id, answer) for solved in chosen for answer in solved.answers]
        return unit_weights(units if self.weighting == "unit" else range(len(units)))
