"""Support above 1/1000 during training: the draws of base and policy, weighed under both models.

The estimator is `offleash.eval.stats.importance`. At each measurement the distinct correct completions of both pools
are scored under both models by teacher forcing, at the temperature they were sampled with. Pools store text: a
completion whose tokens cannot be recovered from it (another number of tokens than was drawn) has no exact score, and
where these are more than a few nothing is said.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from offleash.callbacks import tags
from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.sampler import TrainerSampler
from offleash.eval.errors import ConfigError
from offleash.eval.pool.counts import Hits
from offleash.eval.pool.pool import Pool
from offleash.eval.stats.importance import Draws, mixture_rates
from offleash.eval.stats.support import EPS, cells_of, metrics

_MOST_RETOKENIZED = 0.01


class Completion(NamedTuple):
    """A distinct correct completion, and how often each model drew it."""

    problem: int
    unit: int
    ids: list[int]
    from_base: int
    from_policy: int


class ImportanceWeights:
    """Measures with the samples that a monitored step has anyway. Raises ConfigError if their distribution is not the
    one that the trainer scores."""

    def __init__(self, sampler: TrainerSampler) -> None:
        trainer, sampling = sampler.trainer, sampler.sampling
        if not sampling.untruncated or sampling.temperature != trainer.temperature:
            raise ConfigError(
                "importance weights need the monitor's samples from the distribution that is scored: the training "
                f"temperature {trainer.temperature:g} (got {sampling.temperature:g}) without top-p, top-k, min-p and "
                "penalties; set these, or leave importance out"
            )
        self.sampler, self.ranks = sampler, Ranks(trainer.accelerator)

    def measure(self, base: Pool | None, policy: Pool | None, hits: Hits | None) -> dict[str, float]:
        """The tags of `tags.IMPORTANCE`; the pools and hits are those of the main process. Collective."""
        found = self.ranks.from_main(lambda: self._completions(base, policy, hits))
        if found is None:
            return _withheld()
        policy_logprob, base_logprob = self.sampler.score([(one.problem, one.ids) for one in found])
        return self.ranks.from_main(lambda: _metrics(found, base_logprob, policy_logprob, hits))

    def _completions(self, base: Pool | None, policy: Pool | None, hits: Hits | None) -> list[Completion] | None:
        """None if too many were drawn as other tokens than their text has."""
        assert base is not None
        assert policy is not None
        assert hits is not None
        unit_of = {key: u for u, key in enumerate(zip(hits.unit_problem.tolist(), hits.unit_answer, strict=True))}
        place = {name: p for p, name in enumerate(hits.problem_ids)}
        counts: dict[tuple[int, int, str, int], list[int]] = {}
        for side, pool in enumerate((base, policy)):
            for row in pool.read(["problem_id", "correct", "answer", "completion", "tokens"]).to_pylist():
                if row["correct"]:
                    problem = place[row["problem_id"]]
                    unit = unit_of.get((problem, None), unit_of.get((problem, row["answer"]), -1))
                    key = (problem, unit, row["completion"], row["tokens"])
                    counts.setdefault(key, [0, 0])[side] += 1
        found, changed = [], 0
        for (problem, unit, text, tokens), times in counts.items():
            ids = self.sampler.encode(text, tokens)
            changed += sum(times) * (len(ids) != tokens)
            found.append(Completion(problem, unit, ids, *times))
        drawn = sum(one.from_base + one.from_policy for one in found)
        return None if changed > _MOST_RETOKENIZED * drawn else found


def _metrics(
    found: Sequence[Completion], base_logprob: np.ndarray, policy_logprob: np.ndarray, hits: Hits | None
) -> dict[str, float]:
    assert hits is not None
    draws = Draws(
        unit_x=np.array([one.unit for one in found], dtype=np.int64),
        problem_x=np.array([one.problem for one in found], dtype=np.int64),
        from_base_x=np.array([one.from_base for one in found], dtype=np.int64),
        from_policy_x=np.array([one.from_policy for one in found], dtype=np.int64),
        # In half precision a likely completion may come out a little above probability 1.
        base_logprob_x=np.minimum(base_logprob, 0),
        policy_logprob_x=np.minimum(policy_logprob, 0),
    )
    rates = mixture_rates(draws, len(hits.unit_problem), hits.n_p, hits.n_p)
    values = metrics(cells_of(rates.base_u > EPS, rates.policy_u > EPS).sum(axis=0))
    known = {} if rates.withheld else {name: float(values[name]) for name in ("srr", "ndr", "nscr")}
    return _withheld() | {
        **{getattr(tags.IMPORTANCE, name).tag: value for name, value in known.items()},
        tags.IMPORTANCE.effective_samples.tag: rates.effective_samples,
        tags.IMPORTANCE.log_ratio_variance.tag: rates.log_ratio_variance,
        tags.IMPORTANCE.withheld.tag: float(rates.withheld),
    }


def _withheld() -> dict[str, float]:
    return {metric.tag: math.nan for metric in tags.IMPORTANCE} | {tags.IMPORTANCE.withheld.tag: 1.0}
