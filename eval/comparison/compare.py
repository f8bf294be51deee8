"""Pools in, one plain `Comparison` out: what a policy (or a series of checkpoints) reaches that its base did not.

    compare(find_side(["pools/base"]), find_policies("runs/lab/pools"))

Base and policy are brought to the same draws (`comparison.align`), and every number is then taken over all
problems, per task and per domain (the problem's metadata "domain" or "subject", else its task): the paper's Tables 1, 4
and 5 with the intervals, noise and floors that they lack. Nothing is printed here; `offleash.eval.report` does.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from offleash.eval.comparison.align import Reader
from offleash.eval.comparison.examples import Task, moved
from offleash.eval.comparison.result import Comparison, PolicyResult, Scope, SideInfo
from offleash.eval.comparison.scopes import Part, Settings, measure_scope, sensitivity
from offleash.eval.comparison.score_pair import pair
from offleash.eval.comparison.sides import (
    Side,
    check_pair,
    distinct_labels,
    pair_pools,
    side_info,
)
from offleash.eval.errors import ConfigError
from offleash.eval.pool.counts import STATUSES

Note = Callable[[str], None]

_MAX_DOMAINS = 100


def compare(
    base: Side,
    policies: Sequence[Side],
    *,
    force: bool = False,
    k: int | None = None,
    settings: Settings | None = None,
    note: Note | None = None,
) -> Comparison:
    """Each policy against the base, at most `k` draws of a problem. `note` hears what is being done.

    Raises PoolError if pools cannot be compared, naming the settings that differ; `force` lets template and sampling
    differ, and says so in `warnings`.
    """
    if not policies:
        raise ConfigError("there is nothing to compare the base with: name at least one policy pool")
    settings, tell = settings or Settings(), note or _silent
    if settings.resamples < 1 or settings.examples < 0 or settings.seed < 0:
        raise ConfigError("resamples must be at least 1, examples and seed not negative")
    paired_sides = [(side, *pair_pools(base, side)) for side in distinct_labels(policies)]
    warnings: dict[str, None] = {}
    for _, pairs, alone in paired_sides:  # all refusals come before any long read
        warnings |= dict.fromkeys([*alone, *(text for pools in pairs for text in check_pair(*pools, force))])
    readers = {one.spec.task: Reader(one, tell) for _, pairs, _ in paired_sides for one, _ in pairs}
    notes: dict[str, None] = {}
    results = []
    for side, pairs, _ in paired_sides:
        tell(f"comparing {side.label} with {base.label}")
        own = [Reader(policy, tell) for _, policy in pairs]
        of_base = [readers[one.spec.task] for one, _ in pairs]
        tasks = [Task(one.pool, other.pool, pair(one, other, k)) for one, other in zip(of_base, own, strict=True)]
        notes |= dict.fromkeys(text for task in tasks for text in task.paired.notes)
        warnings |= dict.fromkeys(text for reader in of_base for text in _shortcomings(reader, base.label))
        warnings |= dict.fromkeys(text for reader in own for text in _shortcomings(reader, side.label))
        result, more = _result(_info(side, own), tasks, settings)
        warnings |= dict.fromkeys(more)
        results.append(result)
    info = _info(base, list(readers.values()))
    return Comparison(info, tuple(results), settings.confidence, tuple(warnings), tuple(notes))


def _result(side: SideInfo, tasks: Sequence[Task], settings: Settings) -> tuple[PolicyResult, list[str]]:
    parts = [Part(task.paired, np.ones(len(task.paired.kept), bool)) for task in tasks]
    overall = measure_scope("overall", parts, settings)
    by_task = [
        replace(overall, name=part.paired.task)
        if len(parts) == 1
        else measure_scope(part.paired.task, [part], settings)
        for part in parts
    ]
    by_domain, warnings = _domains(parts, overall, by_task, settings)
    result = PolicyResult(
        side=side,
        overall=overall,
        tasks=tuple(by_task),
        domains=tuple(by_domain),
        sensitivity=tuple(sensitivity(parts, settings)),
        lost=moved(tasks, lost=True, limit=settings.examples),
        gained=moved(tasks, lost=False, limit=settings.examples),
    )
    return result, warnings


def _domains(
    parts: Sequence[Part], overall: Scope, by_task: Sequence[Scope], settings: Settings
) -> tuple[list[Scope], list[str]]:
    names = list(dict.fromkeys(name for part in parts for name in part.paired.domain_p))
    if set(names) == {scope.name for scope in by_task} and all(len(set(part.paired.domain_p)) == 1 for part in parts):
        return list(by_task), []
    if len(names) == 1:
        return [replace(overall, name=names[0])], []
    if len(names) > _MAX_DOMAINS:
        return [], [f"the problems name {len(names)} domains: none is shown, more than {_MAX_DOMAINS} are no breakdown"]
    scopes = []
    for name in names:
        chosen = [Part(part.paired, np.array([other == name for other in part.paired.domain_p])) for part in parts]
        scopes.append(measure_scope(name, chosen, settings))
    return scopes, []


def _shortcomings(reader: Reader, label: str) -> list[str]:
    """What is missing from a pool, and what in it could not be judged."""
    pool, n_p = reader.pool, reader.all.hits.n_p
    drawn, budget = int(n_p.sum()), len(n_p) * pool.spec.k
    where, warnings = f"{label}, {pool.spec.task}", []
    if reader.successes is not None:
        unfinished = int(np.sum(reader.reach(reader.successes) < pool.spec.k))
        if unfinished:
            warnings.append(f"{where}: INCOMPLETE, {unfinished:,} of {len(n_p):,} problems are unfinished")
    elif drawn < budget:
        short = int(np.sum(n_p < pool.spec.k))
        warnings.append(
            f"{where}: INCOMPLETE, {budget - drawn:,} of {budget:,} draws "
            f"({(budget - drawn) / budget:.1%}) are missing, in {short:,} of {len(n_p):,} problems"
        )
    if empty := int(np.sum(n_p == 0)):
        warnings.append(f"{where}: {empty:,} problems have no draw at all and are left out")
    failed = int(sum(reader.all.status_ps[:, STATUSES.index(word)].sum() for word in ("timeout", "error")))
    if failed:
        warnings.append(
            f"{where}: {failed:,} samples ({failed / drawn:.2%}) could not be judged (verifier timeout "
            "or error): they count as draws that missed, which may not be so"
        )
    return warnings


def _info(side: Side, readers: Sequence[Reader]) -> SideInfo:
    return replace(side_info(side), draws=sum(int(reader.all.hits.n_p.sum()) for reader in readers))


def _silent(text: str) -> None:
    pass
