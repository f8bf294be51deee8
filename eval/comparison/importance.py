"""Support above a small probability from scored pools: the draws of base and policy, each weighed under both models.

Needs four scores (`offleash score`): the base's pool and the policy's, each under both models, at the temperature that
was sampled. What stands in the way is said by name: truncated sampling, whose distribution is not scored, scores at
another temperature, correct completions without a score, texts that were drawn as other tokens than are scored.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offleash.eval.comparison.align import Aligned
from offleash.eval.comparison.result import Importance
from offleash.eval.comparison.scopes import Part, Settings
from offleash.eval.pool.pool import Pool
from offleash.eval.scoring.score_folder import ScoreFolder, ScoreRows, find_scores
from offleash.eval.stats.importance import LARGEST_VARIANCE, Draws, mixture_rates
from offleash.eval.stats.support import EPS, bootstrap_dynamics, cells_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_RETOKENIZED = 0.01


class _Withheld(Exception):
    """Why there is no estimate."""


def importance(parts: Sequence[Part], settings: Settings) -> Importance | None:
    """None if the pools are not scored under both models, or a plan is adaptive."""
    if any(part.aligned.plan is not None or _folders(part.aligned) is None for part in parts):
        return None
    try:
        tasks = [_task_draws(part.aligned) for part in parts]
    except _Withheld as reason:
        return Importance(EPS, {}, np.nan, np.nan, str(reason))
    units = np.cumsum([0, *(len(part.aligned.unit_problem) for part in parts)])
    problems = np.cumsum([0, *(len(part.aligned.kept) for part in parts)])
    columns = [
        draws._replace(unit_x=draws.unit_x + unit, problem_x=draws.problem_x + problem)
        for (draws, _, _), unit, problem in zip(tasks, units[:-1], problems[:-1], strict=True)
    ]
    draws = Draws(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    n_base, n_policy = (np.concatenate([task[i] for task in tasks]) for i in (1, 2))
    rates = mixture_rates(draws, int(units[-1]), n_base, n_policy)
    why = (
        f"the models are too far apart: the log-ratio has variance {rates.log_ratio_variance:.1f}, "
        f"{LARGEST_VARIANCE:g} or more"
        if rates.withheld
        else ""
    )
    problem_u = np.concatenate([part.aligned.unit_problem + p for part, p in zip(parts, problems[:-1], strict=True)])
    estimates = bootstrap_dynamics(
        cells_of(rates.base_u > EPS, rates.policy_u > EPS),
        problem_u,
        rng=np.random.default_rng([settings.seed, 2]),
        confidence=settings.confidence,
        resamples=settings.resamples,
    )
    return Importance(EPS, {} if why else estimates, rates.effective_samples, rates.log_ratio_variance, why)


def _folders(task: Aligned) -> dict[tuple[str, str], ScoreFolder] | None:
    """(pool's side, model's side) -> scores, at the sampled temperature if there are any."""
    pools = {"base": task.base.pool, "policy": task.policy.pool}
    found = {}
    for side, pool in pools.items():
        for model, other in pools.items():
            fitting = [folder for folder in find_scores(pool) if folder.spec.weights == other.spec.weights]
            if not fitting:
                return None
            temperature = pool.spec.temperature
            found[side, model] = min(fitting, key=lambda one: (one.spec.temperature != temperature, one.name))
    return found


def _task_draws(task: Aligned) -> tuple[Draws, Ints, Ints]:
    """Correct draws of both pools, and how many draws of each problem were scored."""
    folders = _folders(task)
    assert folders is not None
    sides, counts = [], []
    for side, arm in (("base", task.base), ("policy", task.policy)):
        _check_distribution(arm.pool, [folders[side, model] for model in ("base", "policy")])
        base, policy = (folders[side, model].read() for model in ("base", "policy"))
        scored_pk = np.full((2, len(arm.pool.problem_ids), arm.pool.spec.k), np.nan)
        seen_pk = np.zeros((2, *scored_pk.shape[1:]), bool)
        for i, rows in enumerate((base, policy)):
            scored_pk[i, rows.problem_r, rows.index_r] = rows.logprob_r
            seen_pk[i, rows.problem_r, rows.index_r] = True
        both_pk = seen_pk[0] & seen_pk[1]
        problem_x, index_x, unit_x = _correct(task, arm.pool, both_pk)
        logprob_x = scored_pk[:, task.kept[problem_x], index_x]
        if missing := int(np.isnan(logprob_x).any(axis=0).sum()):
            raise _Withheld(f"{missing:,} correct completions of the {side} could not be scored")
        _check_tokens(side, base)
        drawn = np.ones(len(unit_x), np.int64)
        times = (drawn, 0 * drawn) if side == "base" else (0 * drawn, drawn)
        sides.append(Draws(unit_x, problem_x, *times, *logprob_x))
        counts.append(both_pk.sum(axis=1)[task.kept])
    if min(count.min() for count in counts) < 1:
        raise _Withheld("a problem has no draw that is scored under both models")
    return Draws(*(np.concatenate(column) for column in zip(*sides, strict=True))), counts[0], counts[1]


def _check_distribution(pool: Pool, folders: Sequence[ScoreFolder]) -> None:
    spec = pool.spec
    if not spec.untruncated:
        raise _Withheld(
            f"{pool.path.name} was sampled with top-p, top-k, min-p or a penalty, and scores are of the whole "
            "distribution: sample without them"
        )
    if other := [folder for folder in folders if folder.spec.temperature != spec.temperature]:
        raise _Withheld(
            f"{pool.path.name} was sampled at temperature {spec.temperature:g} and {other[0].name} is scored at "
            f"{other[0].spec.temperature:g}: score it at {spec.temperature:g}"
        )


def _check_tokens(side: str, rows: ScoreRows) -> None:
    known = int(np.isfinite(rows.drawn_r + rows.logprob_r).sum())
    changed = int(rows.retokenized_r.sum())
    if changed > _MOST_RETOKENIZED * known:
        raise _Withheld(
            f"{changed:,} of {known:,} completions of the {side} were drawn as other tokens than are scored"
        )


def _correct(task: Aligned, pool: Pool, scored_pk: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Problem (among those kept), index and unit of the correct draws that are scored."""
    hits = task.base.hits
    unit_of = {key: u for u, key in enumerate(zip(hits.unit_problem.tolist(), hits.unit_answer, strict=True))}
    place = np.full(len(pool.problem_ids), -1)
    place[task.kept] = np.arange(len(task.kept))
    found: list[tuple[int, int, int]] = []
    for chunk in pool.scan(["correct", "answer"]):
        right = chunk.columns.column("correct").to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(right & (place[chunk.problem_r] >= 0) & scored_pk[chunk.problem_r, chunk.index_r])
        answers = chunk.columns.column("answer").to_pylist()
        for row in rows.tolist():
            problem = int(place[chunk.problem_r[row]])
            unit = unit_of.get((problem, None), unit_of.get((problem, answers[row]), -1))
            found.append((problem, int(chunk.index_r[row]), unit))
    columns = np.array(found, dtype=np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]
