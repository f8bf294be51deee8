"""Measuring one policy version: its pool, drawn by any engine, and its numbers against the base's pool.

Token entropy and the KL to the base come from scoring the first samples under both models (`offleash score`), which the
trainer's own monitor does as it samples.
"""

import math
import sys
import tempfile
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from offleash.callbacks import tags
from offleash.callbacks.counted import Counted, count_base, count_pool, pool_metrics, step_metrics
from offleash.eval.comparison.sides import check_comparable
from offleash.eval.console import say
from offleash.eval.engines.model import ModelSource, is_url
from offleash.eval.errors import ConfigError
from offleash.eval.lock import awaited
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.sample import Sampler, SamplingJob
from offleash.eval.pool.settings import ModelSettings, SampleSettings
from offleash.eval.problem import Task
from offleash.eval.sampling import derive_seed
from offleash.eval.scoring.pool_scores import score_pool
from offleash.eval.scoring.score_folder import ScoreRows


@dataclass(frozen=True, slots=True)
class Base:
    """What every step is measured against."""

    pool: Pool
    counted: Counted
    metrics: dict[str, float]


class Probe:
    """The probe problems and how they are sampled: the base once, then any number of policies.

    Args:
        task: the probe problems and their verifier.
        base: the model that the run started from.
        settings: as for `offleash sample`; the seed is that of the whole series.
        score_k: how many samples per problem are scored; 0 leaves token entropy and KL out.
        base_pools: where base pools are kept, by fingerprint, for all runs.
    """

    def __init__(self, task: Task, base: str, settings: SampleSettings, *, score_k: int, base_pools: Path) -> None:
        if is_url(base) or settings.engine == "openai":
            raise ConfigError(
                "a server samples the model that it serves, not the checkpoints of a folder: choose the engine "
                "transformers, vllm or one of your own (--engine), and a model as --base"
            )
        self.task, self.base_name, self.settings = task, base, settings
        # Under a plan that stops early later samples are of the harder problems only.
        self.score_k, self.base_pools = min(score_k, settings.k, settings.successes or settings.k), base_pools
        self.temperature = float(settings.sampling_fields().get("temperature", 1.0))
        self._told: set[str] = set()

    @cached_property
    def _base_sampler(self) -> Sampler:
        return Sampler(self.base_name, self._seeded("base"))

    @property
    def base_source(self) -> ModelSource:
        return self._base_sampler.source

    def base(self) -> Base:
        """Sampled unless it exists; others that need the same pool wait."""
        (job,) = self._base_sampler.prepare([(self.task, self._base_folder())])
        with awaited(self.base_pools, f".{job.pool.path.name}.lock"):
            totals = self._base_sampler.run(job, progress=sys.stderr.isatty())
            say(f"offleash: base pool {job.pool.path}: {'complete, reused' if totals is None else 'complete'}")
            self._base_sampler.close()
            scores = self._scores(job.pool, self.base_name, "base")
        counted = count_base(job.pool)
        return Base(job.pool, counted, pool_metrics(counted, self.temperature) | self._entropy(scores))

    def sampler(self, step: int, model: str, source: Path | None = None) -> Sampler:
        """For the policy of a step. `source`: what the record calls it, if the model is a pinned version of that."""
        sampler = Sampler(model, replace(self._seeded(step), revision=self.settings.revision if step == 0 else None))
        if source is not None:
            sampler.source = replace(sampler.source, name=str(source))
        return sampler

    def draw(self, sampler: Sampler, path: Path, base: Base) -> Pool:
        """The pool of a step, complete."""
        job: SamplingJob
        (job,) = sampler.prepare([(self.task, path)])
        for warning in check_comparable(base.pool, job.pool):
            told = warning.removesuffix(f" ({job.pool.path.name})")
            if told not in self._told:
                self._told.add(told)
                say(f"offleash: {warning}")
        sampler.run(job, progress=sys.stderr.isatty())
        return job.pool

    def metrics(self, pool: Pool, model: str, base: Base) -> tuple[dict[str, float], Counted]:
        """All numbers of a step but the time it took."""
        counted = count_pool(pool)
        own = self._scores(pool, model, "policy")
        of_base = own if pool.spec.weights == base.pool.spec.weights else self._scores(pool, self.base_name, "base")
        kl = _mean_difference(own, of_base, pool.spec.k) if pool.spec.untruncated else math.nan
        found = step_metrics(base.counted, counted, self.temperature)
        return {**found, **self._entropy(own), tags.KL_TO_BASE.tag: kl, tags.MONITOR_FAILED.tag: 0.0}, counted

    def _seeded(self, part: int | str) -> SampleSettings:
        return replace(self.settings, seed=derive_seed(self.settings.seed, part))

    def _base_folder(self) -> Path:
        """By the fingerprint of its settings, which a pool that is opened and thrown away tells."""
        with tempfile.TemporaryDirectory() as trial:
            (job,) = self._base_sampler.prepare([(self.task, Path(trial) / "pool")])
            return self.base_pools / f"{self.task.name.replace('/', '-')}-{job.pool.spec.fingerprint()[:16]}"

    def _scores(self, pool: Pool, model: str, name: str) -> ScoreRows | None:
        if not self.score_k:
            return None
        how = {item.name: getattr(self.settings, item.name) for item in fields(ModelSettings)}
        how["progress"] = sys.stderr.isatty()
        how["revision"] = self.settings.revision if model == self.base_name else None
        return score_pool(pool, model, k=self.score_k, name=name, temperature=self.temperature, **how).rows

    def _entropy(self, scores: ScoreRows | None) -> dict[str, float]:
        known = np.zeros(0) if scores is None else scores.entropy_r[np.isfinite(scores.entropy_r)]
        return {tags.token_entropy(self.temperature).tag: float(known.mean()) if known.size else math.nan}


def _mean_difference(policy: ScoreRows | None, base: ScoreRows | None, k: int) -> float:
    """Mean of ln policy/base over the completions that both have scored."""
    if policy is None or base is None:
        return math.nan
    keys = (rows.problem_r * k + rows.index_r for rows in (policy, base))
    _, one, other = np.intersect1d(*keys, return_indices=True)
    difference = policy.logprob_r[one] - base.logprob_r[other]
    known = difference[np.isfinite(difference)]
    return float(known.mean()) if known.size else math.nan
