"""Exact probabilities of every correct answer at measured steps, against the base and its KL-optimal reweighting.

An option of SupportCallback for tasks whose answers can be enumerated. Each measured step becomes a file
`exact/step-000100.npz` in the run's folder; step 0 is the base. The main process computes; nothing is sampled.
"""

import math
from pathlib import Path
from typing import Any

from offleash.callbacks import tags
from offleash.callbacks.policy.frozen_base import frozen_base
from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.sampler import TrainerSampler, isolated_rng
from offleash.callbacks.policy.trl_seam import text_tokenizer, without_gradient_checkpointing
from offleash.eval.console import say
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.problem import Task
from offleash.eval.scoring.exact import ExactUnits, check_enumerable, exact_units
from offleash.eval.scoring.positions import Paths, text_paths, where_lost
from offleash.eval.stats.exact_support import EPSILONS, exact_support
from offleash.eval.stats.leash.tilt import leash_line

FOLDER = "exact"
"""In the run's folder."""


class ExactProbabilities:
    """Measures the policy in training. Raises ConfigError where the values would not be exact, before anything runs."""

    def __init__(self, sampler: TrainerSampler, task: Task, folder: Path) -> None:
        self.sampler, self.trainer, self.folder = sampler, sampler.trainer, folder / FOLDER
        self.task = check_enumerable(task)
        if not sampler.sampling.untruncated:
            raise ConfigError(
                "exact probabilities are those of samples without top-p, top-k, min-p and penalties: "
                "leave these out of the monitor's sampling, or leave exact out"
            )
        if sampler.with_images:
            raise ConfigError("exact probabilities are computed for prompts of text alone, not with images")
        if sampler.is_sharded:
            raise ConfigError(
                "exact probabilities need the whole model on the main process, which DeepSpeed and FSDP do not keep: "
                "launch without them, or leave exact out"
            )
        self.ranks = Ranks(self.trainer.accelerator)
        self.base: ExactUnits | None = None
        """On the main process, once it was needed."""
        self._paths: Paths | None = None

    def begin(self, step: int) -> None:
        """Remove the files of steps that a resumed run takes again. Collective, as is `measure`."""
        self.ranks.on_main(lambda: self._remove_after(step))

    def measure(self, step: int) -> dict[str, float]:
        """Write the step's file; the values of `tags.EXACT`, the same on every rank."""
        if step and self.ranks.from_main(lambda: self.base is None):
            self._recall_base()
        units = self.ranks.on_main(lambda: self._computed(self.trainer.model, step))
        if step == 0:
            self.base = units
        return self.ranks.from_main(lambda: self._metrics(units))

    def _metrics(self, units: ExactUnits | None) -> dict[str, float]:
        found = exact_metrics(self.base, units)  # which sees to it that both are of the same answers
        if self._paths is None and self.base is not None:
            self._paths = text_paths(self.base)
        return {**found, **where_metrics(self.base, units, self._paths)}

    def _recall_base(self) -> None:
        """A resumed run: the base is in the file of step 0, or still the frozen base of the trainer."""
        if self.ranks.from_main(self._path(0).exists):
            self.base = self.ranks.on_main(lambda: ExactUnits.load(self._path(0)))
            return
        if self.ranks.is_main:
            say(f"offleash: {self._path(0)} is missing: exact probabilities of the base are computed again")
        with frozen_base(self.trainer).scored() as model:
            self.base = self.ranks.on_main(lambda: self._computed(model, 0))

    def _computed(self, model: Any, step: int) -> ExactUnits:
        sampler, trainer = self.sampler, self.trainer
        with isolated_rng(), without_gradient_checkpointing(trainer):
            units = exact_units(
                trainer.accelerator.unwrap_model(model),
                text_tokenizer(trainer),
                self.task,
                self.task.problems,
                temperature=sampler.sampling.temperature,
                max_new_tokens=sampler.sampling.max_new_tokens,
                prompt_ids=sampler.prompt_ids,
                end_token_ids=trainer.eos_token_ids,
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        units.save(self._path(step))
        return units

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}.npz"

    def _remove_after(self, step: int) -> None:
        for path in self.folder.glob("step-*.npz"):
            number = path.stem.removeprefix("step-")
            if number.isdecimal() and int(number) > step:
                path.unlink()


def exact_metrics(base: ExactUnits | None, policy: ExactUnits | None) -> dict[str, float]:
    """From the exact probabilities of both models: the values of `tags.EXACT`."""
    assert base is not None
    assert policy is not None
    if (base.problem_ids, base.unit_answer) != (policy.problem_ids, policy.unit_answer):
        raise PoolError(
            "the exact probabilities of the base are of other problems or answers than the policy's: "
            "keep the probe problems of the run, or start another one"
        )
    base_u, of = base.probability_u, base.unit_problem
    found = exact_support(base_u, policy.probability_u, of)
    line = leash_line(base_u, of, found.pass_at_k[1]).support
    values = {tags.EXACT_PASS_AT_1.tag: policy.pass_at_1(), tags.EXACT_ENTROPY.tag: found.entropy}
    values[tags.LEASH_ENTROPY.tag] = math.nan if line is None else line.entropy
    for eps in EPSILONS:
        values[tags.at_floor(tags.EXACT_NSCR, eps).tag] = found.units[eps].nscr
        values[tags.at_floor(tags.LEASH_NSCR, eps).tag] = math.nan if line is None else line.units[eps].nscr
    return values


def where_metrics(base: ExactUnits | None, policy: ExactUnits | None, paths: Paths | None) -> dict[str, float]:
    """Where units were lost at the floor 1e-3, and whether the policy can still complete them."""
    assert base is not None
    assert policy is not None
    lost = where_lost(base, policy, 1e-3, paths).lost
    first, branch, later, _ = lost.shares
    return {
        tags.EXACT_LOST.tag: float(lost.units),
        tags.LOST_AT_FIRST_TOKEN.tag: first,
        tags.LOST_AT_BRANCHING.tag: branch + later,
        tags.STILL_EXECUTABLE.tag: lost.after_first[1],
        tags.STILL_EXECUTABLE_BASE.tag: lost.after_first[0],
    }
