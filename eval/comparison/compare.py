"""Pools in, one plain `Comparison` out: what a policy (or a series of checkpoints) reaches that its base did not.

Base and policy are compared at the same number of draws (`comparison.align`), and every number is taken over all
problems, per task and per domain (the problem's metadata "domain" or "subject", else its task): the paper's Tables 1, 4
and 5 with the intervals, noise and detection limits that they lack. Nothing is printed here; `offleash.eval.report`
does that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from offleash.eval.comparison.align import Aligned, Reader, align, unrecorded
from offleash.eval.comparison.examples import moved
from offleash.eval.comparison.importance import importance
from offleash.eval.comparison.leash import leash, with_nscr_of
from offleash.eval.comparison.result import Comparison, PolicyResult, Scope, SideInfo, TaskPools
from offleash.eval.comparison.scopes import Part, Settings, measure_scope, sensitivity
from offleash.eval.comparison.sides import (
    PoolSource,
    Side,
    check_comparable,
    distinct_labels,
    find_base,
    find_policies,
    match_by_task,
    shared_problems,
    side_info,
)
from offleash.eval.errors import ConfigError
from offleash.eval.pool.counts import STATUSES
from offleash.eval.pool.pool import Pool

_MAX_DOMAINS = 100
_EARLIER_EXAMPLES = 10
_Matched = tuple[Side, list[tuple[Pool, Pool]], list[str]]


def compare(
    base: PoolSource | Sequence[PoolSource],
    policy: PoolSource | Sequence[PoolSource | Sequence[PoolSource]],
    *,
    k: int | None = None,
    force: bool = False,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    examples: int = 10,
    note: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare one policy, or a series of checkpoints, with its base.

    A pool is a `Pool` or the path of its folder.

    Args:
        base: a pool, a folder that holds one pool per task, or a list of pools, one per task.
        policy: a pool; a folder that holds one pool per task; or a folder of checkpoints, such as the `pools` of a
            training run, which is a series. A list is a series as well, each item a policy; an item that is itself
            a list names the pools of one policy, one per task.
        k: compare at k draws of each problem, as expected of any k of its draws (default: all that both sides have).
        force: compare although template or sampling settings differ, with a warning.
        confidence: of every interval.
        resamples: bootstrap resamples per interval.
        seed: of the resampling.
        examples: how many of the units lost, and of those gained, to show with completions. Of a series those of the
            last policy; of the others 10 at most.
        note: called with a line about each long step.

    Raises:
        PoolError: there is no such pool, or the pools cannot be compared; the message names the settings that differ.
        ConfigError: an argument is out of range, or there is no policy.

    >>> from offleash.eval import Sampling, compare, load_task, sample_pool
    >>> task = load_task("countdown", split="probe", n=4)
    >>> settings = {"k": 8, "sampling": Sampling(max_new_tokens=20), "progress": False}
    >>> base = sample_pool("lab", task, "pools/base", **settings)
    >>> policy = sample_pool("lab", task, "pools/policy", seed=1, **settings)
    >>> comparison = compare(base, policy, resamples=200)
    >>> overall = comparison.policies[0].overall
    >>> overall.problems, overall.k_max, sorted(overall.units.any_hit.estimates)[:4]
    (4, 8, ['expanded', 'ndr', 'nscr', 'out'])
    """
    settings, note = Settings(confidence, resamples, seed, examples), note or (lambda text: None)
    if resamples < 1 or examples < 0 or seed < 0:
        raise ConfigError(
            "resamples must be at least 1, examples and seed not negative; "
            f"got resamples={resamples}, examples={examples}, seed={seed}"
        )
    base_side, policy_sides = find_base(base), distinct_labels(find_policies(policy))
    if not policy_sides:
        raise ConfigError("there is nothing to compare the base with: name at least one policy pool")
    matched = [(side, *match_by_task(base_side, side)) for side in policy_sides]
    warnings: dict[str, None] = {}
    for _, pairs, alone in matched:  # all checks come before any long read
        warnings |= dict.fromkeys([*alone, *(text for pools in pairs for text in check_comparable(*pools, force))])
    matched = [(side, [shared_problems(*pools) for pools in pairs], alone) for side, pairs, alone in matched]
    readers = {(one.spec.task, one.spec.problems): Reader(one, note) for _, pairs, _ in matched for one, _ in pairs}
    notes: dict[str, None] = {}
    results = []
    for place, (side, pairs, _) in enumerate(matched, 1):
        note(f"comparing {side.label} with {base_side.label}")
        own = [Reader(other, note) for _, other in pairs]
        of_base = [readers[one.spec.task, one.spec.problems] for one, _ in pairs]
        tasks = [align(one, other, k) for one, other in zip(of_base, own, strict=True)]
        notes |= dict.fromkeys(text for task in tasks for text in task.notes)
        warnings |= dict.fromkeys(text for reader in of_base for text in _shortcomings(reader, base_side.label))
        warnings |= dict.fromkeys(text for reader in own for text in _shortcomings(reader, side.label))
        few = settings._replace(examples=min(examples, _EARLIER_EXAMPLES))
        shown = settings if place == len(matched) else few
        result, more = _result(side_info(side, _draws(own)), tasks, shown)
        warnings |= dict.fromkeys(more)
        results.append(result)
    widest = {task: max((r for (name, _), r in readers.items() if name == task), key=_size) for task, _ in readers}
    info = side_info(base_side, _draws(widest.values()))
    return Comparison(info, tuple(results), confidence, tuple(warnings), tuple(notes), _task_pools(matched, widest, k))


def _task_pools(matched: Sequence[_Matched], widest: Mapping[str, Reader], k: int | None) -> tuple[TaskPools, ...]:
    found = []
    for task, reader in widest.items():
        base = reader.pool
        policies = {side.label: own for side, pairs, _ in matched for one, own in pairs if one.spec.task == task}
        if all(pool.spec.plan.successes is None for pool in (base, *policies.values())):
            draws = min(pool.spec.k for pool in (base, *policies.values()))
            found.append(TaskPools(task, base, policies, draws if k is None else min(k, draws)))
    return tuple(found)


def _result(side: SideInfo, tasks: Sequence[Aligned], settings: Settings) -> tuple[PolicyResult, list[str]]:
    parts = [Part(task, np.ones(len(task.kept), bool)) for task in tasks]
    overall = measure_scope("overall", parts, settings)
    line = leash(parts, overall.curves.ks, overall.one_unit, settings)
    if line is not None:
        overall = with_nscr_of(line, overall)
    by_task = [
        replace(overall, name=part.aligned.task)
        if len(parts) == 1
        else measure_scope(part.aligned.task, [part], settings)
        for part in parts
    ]
    by_domain, warnings = _domains(parts, overall, by_task, settings)
    result = PolicyResult(
        side=side,
        overall=overall,
        tasks=tuple(by_task),
        domains=tuple(by_domain),
        sensitivity=tuple(sensitivity(parts, settings)),
        importance=importance(parts, settings),
        leash=line,
        lost=moved(tasks, overall.units.any_hit.shrunk.sure_units, lost=True, limit=settings.examples),
        gained=moved(tasks, overall.units.any_hit.expanded.sure_units, lost=False, limit=settings.examples),
    )
    return result, warnings


def _domains(
    parts: Sequence[Part], overall: Scope, by_task: Sequence[Scope], settings: Settings
) -> tuple[list[Scope], list[str]]:
    names = list(dict.fromkeys(name for part in parts for name in part.aligned.domain_p))
    if set(names) == {scope.name for scope in by_task} and all(len(set(part.aligned.domain_p)) == 1 for part in parts):
        return list(by_task), []
    if len(names) == 1:
        return [replace(overall, name=names[0])], []
    if len(names) > _MAX_DOMAINS:
        return [], [f"the problems have {len(names)} domains: none is shown, the most that are is {_MAX_DOMAINS}"]
    scopes = []
    for name in names:
        chosen = [Part(part.aligned, np.array([other == name for other in part.aligned.domain_p])) for part in parts]
        scopes.append(measure_scope(name, chosen, settings))
    return scopes, []


def _shortcomings(reader: Reader, label: str) -> list[str]:
    """What is missing from a pool, and which of its samples have no verdict."""
    pool, n_p = reader.pool, reader.all.hits.n_p
    drawn, budget = int(n_p.sum()), int(pool.budget_p.sum())
    where, warnings = f"{label}, {pool.spec.task}", []
    if reader.successes is not None:
        unfinished = int(np.sum(reader.ledger.reach_p(reader.successes) < pool.budget_p))
        if unfinished:
            warnings.append(f"{where}: INCOMPLETE, {unfinished:,} of {len(n_p):,} problems are unfinished")
    elif drawn < budget:
        short = int(np.sum(n_p < pool.budget_p))
        warnings.append(
            f"{where}: INCOMPLETE, {budget - drawn:,} of {budget:,} draws "
            f"({(budget - drawn) / budget:.1%}) are missing, in {short:,} of {len(n_p):,} problems"
        )
    if empty := int(np.sum(n_p == 0)):
        warnings.append(f"{where}: {empty:,} problems have no draw at all and are left out")
    if unknown := int(reader.all.unknown_p.sum()):
        warnings.append(
            f"{where}: {unknown:,} samples have a verdict and no answer on record: majority, answer entropy, effective "
            f"answers, PCMD and the share without an answer are undefined in {np.sum(reader.all.unknown_p > 0):,} of "
            f"{len(n_p):,} problems"
        )
    if absent := unrecorded(reader):
        words = " or ".join(repr(status) for status in absent)
        warnings.append(f"{where}: the import does not say which samples have the status {words}: no share is shown")
    failed = int(reader.all.status_ps[:, STATUSES.index("error")].sum())
    if failed:
        warnings.append(
            f"{where}: {failed:,} samples ({failed / drawn:.2%}) could not be judged (verifier error): "
            "they count as misses, which may be wrong"
        )
    return warnings


def _size(reader: Reader) -> int:
    return len(reader.pool.problem_ids)


def _draws(readers: Iterable[Reader]) -> int:
    return sum(int(reader.all.hits.n_p.sum()) for reader in readers)
