"""What sampling a pool would take: samples that exist and that are missing, their tokens and bytes. Writes nothing."""

from dataclasses import dataclass

import numpy as np

from offleash.eval.pool.counts import VALUES, Tally
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.sample import PlannedPool

_BYTES_PER_TOKEN = 4  # of text, before compression
_BYTES_PER_SAMPLE = 100  # of everything else


@dataclass(frozen=True, slots=True)
class Preview:
    """What a pool has and lacks."""

    samples: int
    """Of the whole plan."""
    existing: int
    missing: int
    """With a plan that stops early, at most."""
    stops_early: bool
    prompt_tokens: int | None
    """Of the prompts of all missing samples; None if a server tokenizes them."""
    longest_prompt: int
    max_tokens: int
    """New tokens, if every missing completion is truncated."""
    expected_tokens: int | None
    """New tokens, if the missing completions are as long as the existing ones; None if there are none."""
    bytes: int
    """On disk: as much for each missing sample as for the existing ones, or an upper bound."""
    is_measured: bool
    """Whether `bytes` comes from existing samples."""


def preview(planned: PlannedPool) -> Preview:
    """What is missing of a planned pool. Raises PoolError, naming the settings, if the pool there has others."""
    spec = planned.spec
    pool = _existing(planned)
    counted = None if pool is None else pool.tally()
    missing_p = np.array(_missing_p(counted, planned))
    existing = 0 if counted is None else int(counted.hits.n_p.sum())
    missing, is_measured = int(missing_p.sum()), existing > 0
    size: float = _BYTES_PER_TOKEN * spec.max_new_tokens + _BYTES_PER_SAMPLE
    if pool is not None and is_measured:
        size = sum(path.stat().st_size for path in pool.parts.paths()) / existing
    mean = None if counted is None else _mean_tokens(counted)
    longest = planned.prompts.longest
    lengths_p = np.array([len(prompt) for prompt in planned.prompts.prompts])
    return Preview(
        samples=spec.k * len(planned.problems),
        existing=existing,
        missing=missing,
        stops_early=spec.plan.successes is not None,
        prompt_tokens=int(lengths_p @ missing_p) if longest else None,
        longest_prompt=longest,
        max_tokens=missing * spec.max_new_tokens,
        expected_tokens=None if mean is None else round(missing * mean),
        bytes=round(missing * size),
        is_measured=is_measured,
    )


def _existing(planned: PlannedPool) -> Pool | None:
    if not (planned.folder / "pool.json").exists():
        return None
    pool = Pool.open(planned.folder)
    if not pool.spec.is_judged_otherwise(planned.spec):  # its completions would be judged again
        pool.check_settings(planned.spec)
    there = set(pool.problem_ids)
    ids = [problem.id for problem in planned.problems if problem.id in there]
    return pool.only(ids, min(planned.spec.k, pool.spec.k)) if ids else None


def _missing_p(counted: Tally | None, planned: PlannedPool) -> list[int]:
    """Samples of each problem that the plan can still ask for."""
    k, successes, hits = planned.spec.k, planned.spec.plan.successes, None if counted is None else counted.hits
    drawn = {} if hits is None else dict(zip(hits.problem_ids, zip(hits.n_p, hits.correct_p, strict=True), strict=True))
    found = []
    for problem in planned.problems:
        n, correct = drawn.get(problem.id, (0, 0))
        found.append(0 if successes is not None and correct >= successes else max(0, k - int(n)))
    return found


def _mean_tokens(counted: Tally) -> float | None:
    column = VALUES.index("tokens")
    known = int(counted.known_pv[:, column].sum())
    return float(counted.sum_pv[:, column].sum()) / known if known else None
